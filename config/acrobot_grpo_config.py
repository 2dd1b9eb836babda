"""GRPO on Acrobot-v1. The advantage compares each step's return-to-go with that of the group at the same step."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
main_config = EasyDict(
    exp_name='runs/acrobot_grpo',
    env=dict(env_id='Acrobot-v1', n_evaluator_episode=100, stop_value=-100),
    policy=dict(
        group_size=4,
        model=dict(obs_shape=6, action_shape=3, action_space='discrete', **hidden),
        learn=dict(
            epoch_per_collect=10,
            target_kl=0.02,
            batch_groups=1,
            learning_rate=3e-3,
            grad_clip_value=0.5,
            reduction='token',
            advantage='return_to_go_by_step',
            extend_truncated=True,
            clip=dict(ratio=0.2),
        ),
        collect=dict(groups=2, discount_factor=0.99),
        eval=dict(evaluator=dict(eval_freq=1)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='gymnasium_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
