"""DI-engine's PPO on Acrobot-v1: same environment, evaluator and network as acrobot_grpo_config.py."""
from easydict import EasyDict

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
evaluation = dict(evaluator_env_num=100, n_evaluator_episode=100, stop_value=-100)
main_config = EasyDict(
    exp_name='runs/acrobot_ppo',
    env=dict(env_id='Acrobot-v1', collector_env_num=8, **evaluation),
    policy=dict(
        action_space='discrete',
        model=dict(obs_shape=6, action_shape=3, action_space='discrete', **hidden),
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=4,
            batch_size=64,
            learning_rate=5e-4,
            value_weight=0.5,
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.94),
        eval=dict(evaluator=dict(eval_freq=128)),  # counted in mini-batches; one collect gives 128
    ),
)
env = dict(type='gymnasium_env', import_names=['ding_grpo'])
create_config = EasyDict(env=env, env_manager=dict(type='base'), policy=dict(type='ppo'))

if __name__ == '__main__':
    from ding_grpo.entry import run
    run(__file__)
