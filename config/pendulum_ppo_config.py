"""DI-engine's PPO on Pendulum-v1: same environment, evaluator and network as pendulum_grpo_config.py."""
from easydict import EasyDict

pendulum_ppo_config = dict(
    exp_name='runs/pendulum_ppo',
    env=dict(
        env_id='Pendulum-v1',
        act_scale=True,  # scales actions in [-1, 1] to the bounds of the environment
        collector_env_num=16,
        evaluator_env_num=100,
        n_evaluator_episode=100,
        stop_value=-200,
    ),
    policy=dict(
        cuda=False,
        action_space='continuous',
        model=dict(
            obs_shape=3,
            action_shape=1,
            action_space='continuous',
            encoder_hidden_size_list=[64, 64],
            actor_head_hidden_size=64,
            critic_head_hidden_size=64,
        ),
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=1e-3,
            value_weight=0.5,
            entropy_weight=0.0,
            clip_ratio=0.2,
            ignore_done=True,  # every episode is truncated, none terminates
        ),
        collect=dict(n_sample=2048, discount_factor=0.9, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=320)),  # counted in mini-batches; one collect gives 320
    ),
)
main_config = EasyDict(pendulum_ppo_config)

pendulum_ppo_create_config = dict(
    env=dict(type='gymnasium_env', import_names=['ding_grpo']),
    env_manager=dict(type='base'),
    policy=dict(type='ppo'),
)
create_config = EasyDict(pendulum_ppo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
