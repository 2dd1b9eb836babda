"""DI-engine's PPO on LunarLanderContinuous-v3 (needs the extra box2d), as in lunarlander_continuous_grpo_config.py."""
from easydict import EasyDict

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
evaluation = dict(evaluator_env_num=100, n_evaluator_episode=100, stop_value=200)
main_config = EasyDict(
    exp_name='runs/lunarlander_continuous_ppo',
    env=dict(env_id='LunarLanderContinuous-v3', act_scale=True, collector_env_num=16, **evaluation),
    policy=dict(
        action_space='continuous',
        model=dict(obs_shape=8, action_shape=2, action_space='continuous', **hidden),
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=4,
            batch_size=64,
            learning_rate=3e-4,
            value_weight=0.5,
            entropy_weight=0.01,
        ),
        collect=dict(n_sample=8000, discount_factor=0.999, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=500)),  # counted in mini-batches
    ),
)
env = dict(type='gymnasium_env', import_names=['ding_grpo'])
create_config = EasyDict(env=env, env_manager=dict(type='base'), policy=dict(type='ppo'))

if __name__ == '__main__':
    from ding_grpo.entry import run
    run(__file__)
