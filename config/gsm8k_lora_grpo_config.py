"""GRPO on GSM8K as in gsm8k_grpo_config.py, but training only LoRA adapters."""
from easydict import EasyDict

group_size = 8
gsm8k_lora_grpo_config = dict(
    exp_name='runs/gsm8k_lora_grpo',
    env=dict(
        collector_env_num=8 * group_size,
        evaluator_env_num=64,
        n_evaluator_episode=256,
        stop_value=1.0,
        task=dict(
            type='file',
            path='gsm8k/train.jsonl',  # from https://github.com/openai/grade-school-math, or the hub's parquet files
            eval_path='gsm8k/test.jsonl',
            reference_in='####',
            answer_in='####',
            check='number',
        ),
        tokenizer=dict(pretrained='Qwen/Qwen2.5-0.5B-Instruct'),
        system_prompt='Think step by step, then write #### and the number that is the answer.',
        max_new_tokens=256,
        max_prompt_length=320,
        overlong_buffer=64,
        overlong_weight=0.5,
    ),
    policy=dict(
        cuda=True,
        group_size=group_size,
        model=dict(
            pretrained='Qwen/Qwen2.5-0.5B-Instruct',  # or a folder; change the tokenizer above too
            dtype='bfloat16',  # the adapters are float32
            gradient_checkpointing=False,  # set to True if the GPU runs out of memory
            lora=dict(r=16, lora_alpha=32, target_modules='all-linear'),
            save_merged=True,
        ),
        learn=dict(
            batch_size=4,
            learning_rate=2e-5,
            loss='dapo',  # averages over tokens, with a wider clipping range above 1
            beta=0.01,  # KL to the pretrained model, that is with the adapters disabled
            kl_type='k3',
            entropy_weight=0.0,
        ),
        collect=dict(n_sample=8, temperature=1.0),
        eval=dict(evaluator=dict(eval_freq=20)),
    ),
)
main_config = EasyDict(gsm8k_lora_grpo_config)

gsm8k_lora_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(gsm8k_lora_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
