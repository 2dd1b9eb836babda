"""DI-engine's PPO on MiniGrid-DoorKey-5x5-v0 (extra minigrid), for comparison with minigrid_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_ppo', 'runs/minigrid_ppo', env_of='minigrid_grpo')
main_config.policy.collect.update(n_sample=2048, discount_factor=0.99)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
