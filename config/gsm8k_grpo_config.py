"""GRPO on GSM8K with Qwen2.5-0.5B-Instruct. Needs a GPU, the GSM8K files, and the hub or a local model folder."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

# The files are from https://github.com/openai/grade-school-math, or the hub's parquet files.
files = dict(path='gsm8k/train.jsonl', eval_path='gsm8k/test.jsonl')
answers = dict(reference_in='####', answer_in='####', check='number')
prompt = 'Think step by step, then write #### and the number that is the answer.'
lengths = dict(max_new_tokens=256, max_prompt_length=320, overlong_buffer=64, overlong_weight=0.5)
evaluation = dict(evaluator_env_num=64, n_evaluator_episode=256, stop_value=1.0)
main_config = EasyDict(
    exp_name='runs/gsm8k_grpo',
    env=dict(task=dict(type='file', **files, **answers), system_prompt=prompt, **lengths, **evaluation),
    policy=dict(
        cuda=True,
        model=dict(
            pretrained='Qwen/Qwen2.5-0.5B-Instruct',  # or a folder
            dtype='float32',  # at this learning rate, steps vanish in bfloat16 weights
            gradient_checkpointing=False,  # set to True if the GPU runs out of memory
        ),
        learn=dict(batch_groups=4, learning_rate=1e-6, loss='dapo'),  # a mean of tokens, a wider clipping range above 1
        collect=dict(groups=8),
        eval=dict(evaluator=dict(eval_freq=20)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
