"""DI-engine's PPO on MiniGrid-DoorKey-5x5-v0 (extra minigrid), for comparison with minigrid_grpo_config.py."""
from easydict import EasyDict

hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
views = ['minigrid.wrappers:ImgObsWrapper', 'gymnasium.wrappers:FlattenObservation']
views.append(dict(type='gymnasium.wrappers:DtypeObservation', kwargs=dict(dtype='float32')))  # PPO takes no bytes
evaluation = dict(evaluator_env_num=100, n_evaluator_episode=100, stop_value=0.9)
main_config = EasyDict(
    exp_name='runs/minigrid_ppo',
    env=dict(env_id='MiniGrid-DoorKey-5x5-v0', gymnasium_wrappers=views, collector_env_num=16, **evaluation),
    policy=dict(
        action_space='discrete',
        model=dict(obs_shape=147, action_shape=7, action_space='discrete', **hidden),
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=4,
            batch_size=64,
            learning_rate=3e-4,
            entropy_weight=0.01,
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=500)),  # counted in mini-batches
    ),
)
env = dict(type='gymnasium_env', import_names=['ding_grpo'])
create_config = EasyDict(env=env, env_manager=dict(type='base'), policy=dict(type='ppo'))

if __name__ == '__main__':
    from ding_grpo.entry import run
    run(__file__)
