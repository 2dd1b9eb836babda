"""GRPO on Pendulum-v1. The advantage compares each step's return-to-go with that of the group at the same step."""
from easydict import EasyDict

group_size = 8
pendulum_grpo_config = dict(
    exp_name='runs/pendulum_grpo',
    env=dict(
        env_id='Pendulum-v1',
        act_scale=True,  # scales actions in [-1, 1] to the bounds of the environment
        collector_env_num=2 * group_size,
        evaluator_env_num=100,
        n_evaluator_episode=100,
        stop_value=-200,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(
            obs_shape=3,
            action_shape=1,
            action_space='continuous',
            encoder_hidden_size_list=[64, 64],
            actor_head_hidden_size=64,
            critic_head_hidden_size=64,
        ),
        learn=dict(
            epoch_per_collect=20,
            target_kl=0.015,
            batch_size=1,
            learning_rate=1e-3,
            grad_clip_value=0.5,
            clip_ratio=0.2,
            reduction='token',
            advantage='return_to_go_by_step',
        ),
        collect=dict(n_sample=2, discount_factor=0.95),
        eval=dict(evaluator=dict(eval_freq=1)),
    ),
)
main_config = EasyDict(pendulum_grpo_config)

pendulum_grpo_create_config = dict(
    env=dict(type='gymnasium_env', import_names=['ding_grpo']),
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(pendulum_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
