"""GRPO on sums of reasoning-gym: a small language model adds and subtracts, after a warm start."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

sums = dict(min_terms=2, max_terms=3, min_digits=1, max_digits=2)
task = dict(type='reasoning_gym', name='chain_sum', config=sums, eval_size=512)
main_config = EasyDict(
    exp_name='runs/chain_sum_grpo',
    env=dict(task=task, n_evaluator_episode=512, stop_value=1.0, max_new_tokens=8, max_prompt_length=96),
    policy=dict(
        group_size=8,
        model=dict(pretrained='runs/chain_sum_sft/model'),  # output of chain_sum_sft_config.py
        learn=dict(
            batch_groups=32,
            learning_rate=2e-4,
            lr_scheduler=dict(type='linear', num_training_steps=200),
            adv_method='no_std',
            clip=dict(ratio=0.2),
        ),
        collect=dict(groups=32),
        eval=dict(evaluator=dict(eval_freq=25)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
