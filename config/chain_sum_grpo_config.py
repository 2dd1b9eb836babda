"""GRPO on sums of reasoning-gym: a small language model adds and subtracts, after a warm start."""
from easydict import EasyDict

group_size = 8
chain_sum_grpo_config = dict(
    exp_name='runs/chain_sum_grpo',
    env=dict(
        collector_env_num=32 * group_size,
        evaluator_env_num=128,
        n_evaluator_episode=512,
        stop_value=1.0,
        task=dict(
            type='reasoning_gym',
            name='chain_sum',
            config=dict(min_terms=2, max_terms=3, min_digits=1, max_digits=2),
            eval_size=512,
        ),
        tokenizer=dict(pretrained='runs/chain_sum_sft/model'),
        max_new_tokens=8,
        max_prompt_length=96,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(
            pretrained='runs/chain_sum_sft/model',  # output of chain_sum_sft_config.py
        ),
        learn=dict(
            batch_size=32,
            learning_rate=2e-4,
            lr_scheduler=dict(type='linear', num_training_steps=200),
            clip_ratio=0.2,
            adv_method='no_std',
        ),
        collect=dict(n_sample=32, temperature=1.0),
        eval=dict(evaluator=dict(eval_freq=25)),
    ),
)
main_config = EasyDict(chain_sum_grpo_config)

chain_sum_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(chain_sum_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
