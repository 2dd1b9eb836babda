"""GRPO on three generators of reasoning-gym with Qwen2.5-0.5B-Instruct. Needs a GPU, and the hub or a model folder."""
from easydict import EasyDict

group_size = 8
reasoning_mixture_grpo_config = dict(
    exp_name='runs/reasoning_mixture_grpo',
    env=dict(
        collector_env_num=8 * group_size,
        evaluator_env_num=60,
        n_evaluator_episode=300,
        stop_value=1.0,
        task=dict(
            type='reasoning_gym',
            mixture=[
                dict(name='chain_sum', config=dict(max_terms=4, max_digits=2), weight=2),
                dict(name='spell_backward', weight=1),
                dict(name='letter_counting', weight=1),
            ],
            eval_size=300,
            template='{question}\nWrite your final answer as <answer>...</answer>.',
            answer_in='answer_tag',
            weights=dict(score=1.0, right=1.0),
        ),
        tokenizer=dict(pretrained='Qwen/Qwen2.5-0.5B-Instruct'),
        max_new_tokens=128,
        max_prompt_length=320,
    ),
    policy=dict(
        cuda=True,
        group_size=group_size,
        model=dict(
            pretrained='Qwen/Qwen2.5-0.5B-Instruct',  # or a folder; change the tokenizer above too
            dtype='float32',  # at this learning rate, steps vanish in bfloat16 weights
            gradient_checkpointing=False,  # set to True if the GPU runs out of memory
        ),
        learn=dict(
            batch_size=4,
            learning_rate=1e-6,
            loss='dapo',  # averages over tokens, with a wider clipping range above 1
            beta=0.0,
            entropy_weight=0.0,
            reward_aggregation='normalize_then_sum',
        ),
        collect=dict(n_sample=8, temperature=1.0, collector=dict(max_replacements=8)),
        eval=dict(evaluator=dict(eval_freq=20)),
    ),
)
main_config = EasyDict(reasoning_mixture_grpo_config)

reasoning_mixture_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(reasoning_mixture_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
