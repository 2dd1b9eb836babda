"""GRPO on CartPole-v1. The advantage compares each step's return-to-go with all steps of the group."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
limits = dict(target_kl=0.01, clip=dict(ratio=0.2), grad_clip_value=0.5)
main_config = EasyDict(
    exp_name='runs/cartpole_grpo',
    env=dict(env_id='CartPole-v1', n_evaluator_episode=100, stop_value=475),
    policy=dict(
        group_size=4,
        model=dict(obs_shape=4, action_shape=2, action_space='discrete', **hidden),
        learn=dict(
            epoch_per_collect=20,
            batch_groups=3,
            learning_rate=1e-3,  # larger steps, and a constant rate, destabilise a policy that has solved the task
            lr_scheduler=dict(type='cosine_with_min_lr', num_training_steps=40, specific=dict(min_lr_rate=0.05)),
            reduction='token',
            advantage='return_to_go',
            extend_truncated=True,
            **limits,
        ),
        collect=dict(groups=6, discount_factor=0.99),
        eval=dict(evaluator=dict(eval_freq=1)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='gymnasium_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
