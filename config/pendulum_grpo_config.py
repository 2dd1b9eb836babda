"""GRPO on Pendulum-v1. The advantage compares each step's return-to-go with that of the group at the same step."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
main_config = EasyDict(
    exp_name='runs/pendulum_grpo',
    env=dict(env_id='Pendulum-v1', act_scale=True, n_evaluator_episode=100, stop_value=-200),
    policy=dict(
        group_size=8,
        model=dict(obs_shape=3, action_shape=1, action_space='continuous', **hidden),
        learn=dict(
            epoch_per_collect=20,
            target_kl=0.015,
            batch_groups=1,
            learning_rate=1e-3,
            grad_clip_value=0.5,
            reduction='token',
            advantage='return_to_go_by_step',
            clip=dict(ratio=0.2),
        ),
        collect=dict(groups=2, discount_factor=0.95),
        eval=dict(evaluator=dict(eval_freq=1)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='gymnasium_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
