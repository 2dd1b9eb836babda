"""GRPO on CartPole-v1. The advantage compares each step's return-to-go with all steps of the group."""
from easydict import EasyDict

group_size = 4
cartpole_grpo_config = dict(
    exp_name='runs/cartpole_grpo',
    env=dict(
        env_id='CartPole-v1',
        collector_env_num=6 * group_size,
        evaluator_env_num=100,
        n_evaluator_episode=100,
        stop_value=475,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(
            obs_shape=4,
            action_shape=2,
            action_space='discrete',
            encoder_hidden_size_list=[64, 64],
            actor_head_hidden_size=64,
            critic_head_hidden_size=64,
        ),
        learn=dict(
            epoch_per_collect=20,
            target_kl=0.01,
            batch_size=3,
            # Lower than the fastest learning rate, and decaying: larger steps destabilise a policy that has solved it.
            learning_rate=1e-3,
            lr_scheduler=dict(type='cosine_with_min_lr', num_training_steps=40, specific=dict(min_lr_rate=0.05)),
            grad_clip_value=0.5,
            clip_ratio=0.2,
            reduction='token',
            advantage='return_to_go',
            extend_truncated=True,
        ),
        collect=dict(n_sample=6, discount_factor=0.99),
        eval=dict(evaluator=dict(eval_freq=1)),
    ),
)
main_config = EasyDict(cartpole_grpo_config)

cartpole_grpo_create_config = dict(
    env=dict(type='gymnasium_env', import_names=['ding_grpo']),
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(cartpole_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
