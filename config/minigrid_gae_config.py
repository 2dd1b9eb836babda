"""A critic on the rollouts of grpo, on MiniGrid-DoorKey-5x5-v0 (needs the extra minigrid)."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_gae', 'runs/minigrid_gae', env_of='minigrid_grpo')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
