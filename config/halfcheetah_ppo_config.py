"""DI-engine's PPO on HalfCheetah-v5 (extra mujoco), for comparison with halfcheetah_gae_config.py."""
import torch.nn as nn
from easydict import EasyDict

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
network = dict(share_encoder=False, activation=nn.Tanh(), **hidden)
evaluation = dict(evaluator_env_num=8, n_evaluator_episode=8, stop_value=1000)
main_config = EasyDict(
    exp_name='runs/halfcheetah_ppo',
    env=dict(env_id='HalfCheetah-v5', act_scale=True, collector_env_num=16, **evaluation),
    policy=dict(
        action_space='continuous',
        model=dict(obs_shape=17, action_shape=6, action_space='continuous', **network),
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=3e-4,
            ignore_done=True,  # every episode is truncated, none terminates
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=3200)),  # counted in mini-batches
    ),
)
env = dict(type='gymnasium_env', import_names=['ding_grpo'])
create_config = EasyDict(env=env, env_manager=dict(type='base'), policy=dict(type='ppo'))

if __name__ == '__main__':
    from ding_grpo.entry import run
    run(__file__)
