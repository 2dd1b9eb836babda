"""GRPO on MiniGrid-DoorKey-5x5-v0 (needs the extra minigrid). The observation is the agent's view, as numbers."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/minigrid_grpo')
views = ['minigrid.wrappers:ImgObsWrapper', 'gymnasium.wrappers:FlattenObservation']
views.append(dict(type='gymnasium.wrappers:DtypeObservation', kwargs=dict(dtype='float32')))  # PPO takes no bytes
main_config.env.update(env_id='MiniGrid-DoorKey-5x5-v0', gymnasium_wrappers=views, stop_value=0.9)
main_config.policy.model.update(obs_shape=147, action_shape=7)
main_config.policy.learn.entropy = dict(weight=0.01)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
