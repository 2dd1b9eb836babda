"""GRPO on products: a small language model learns to call a calculator and to copy its result."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

main_config = EasyDict(
    exp_name='runs/calculator_grpo',
    env=dict(
        task=dict(type='tools', task=dict(type='products'), functions=['dizoo_llm.tasks.calculator:calc']),
        evaluator_env_num=100,
        stop_value=1.0,  # all 200 held-out products with greedy decoding
        max_turns=2,  # the call and the answer
        max_new_tokens=76,
        max_reply_tokens=64,
        max_prompt_length=6,
    ),
    policy=dict(
        group_size=8,
        model=dict(pretrained='runs/calculator_sft/model'),  # output of python -m dizoo_llm.sft
        learn=dict(batch_groups=8, learning_rate=1e-4, adv_method='no_std', reduction='constant'),
        collect=dict(groups=8),
        eval=dict(evaluator=dict(eval_freq=5, samples_per_start=2)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
