"""A critic on the rollouts of grpo, on MiniGrid-DoorKey-5x5-v0 (needs the extra minigrid)."""
from ding_common import shipped_config
from ding_grpo.entry import complete, run

grpo, _ = shipped_config('minigrid_grpo')
main_config, create_config = shipped_config('lunarlander_gae')
main_config.exp_name = 'runs/minigrid_gae'
main_config.env, main_config.policy.model = grpo.env, grpo.policy.model
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
