"""GRPO on products: a small language model learns to call a calculator and to copy its result."""
from easydict import EasyDict

group_size = 8
calculator_grpo_config = dict(
    exp_name='runs/calculator_grpo',
    env=dict(
        collector_env_num=8 * group_size,
        evaluator_env_num=100,
        n_evaluator_episode=200,
        stop_value=1.0,  # all held-out products with greedy decoding
        task=dict(type='tools', task=dict(type='products'), functions=['dizoo_llm.tasks.calculator:calc']),
        tokenizer=dict(pretrained='runs/calculator_sft/model'),
        max_turns=2,  # the call and the answer
        max_new_tokens=76,
        max_reply_tokens=64,
        max_prompt_length=6,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(pretrained='runs/calculator_sft/model'),  # output of python -m dizoo_llm.sft
        learn=dict(
            batch_size=8,
            learning_rate=1e-4,
            adv_method='no_std',
            reduction='constant',
        ),
        collect=dict(n_sample=8),
        eval=dict(evaluator=dict(eval_freq=5, samples_per_start=2)),
    ),
)
main_config = EasyDict(calculator_grpo_config)

calculator_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(calculator_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
