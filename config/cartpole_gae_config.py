"""A critic on the rollouts of grpo: the environment and the network of cartpole_grpo_config.py, single episodes."""
from easydict import EasyDict

cartpole_gae_config = dict(
    exp_name='runs/cartpole_gae',
    env=dict(
        env_id='CartPole-v1',
        collector_env_num=8,
        evaluator_env_num=100,
        n_evaluator_episode=100,
        stop_value=475,
    ),
    policy=dict(
        cuda=False,
        group_size=1,  # the critic is the baseline, so that no other episode from the same start is needed
        model=dict(
            obs_shape=4,
            action_shape=2,
            action_space='discrete',
            encoder_hidden_size_list=[64, 64],
            actor_head_hidden_size=64,
            critic_head_hidden_size=64,
        ),
        learn=dict(
            epoch_per_collect=10,
            target_kl=0.02,
            batch_size=8,
            batch_steps=256,
            learning_rate=3e-4,
            grad_clip_value=0.5,
            clip_ratio=0.2,
            reduction='token',
            advantage='gae',
            gae_lambda=0.95,
            value_norm=True,
        ),
        collect=dict(n_sample=8, discount_factor=0.99),
        eval=dict(evaluator=dict(eval_freq=4)),
    ),
)
main_config = EasyDict(cartpole_gae_config)

cartpole_gae_create_config = dict(
    env=dict(type='gymnasium_env', import_names=['ding_grpo']),
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(cartpole_gae_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
