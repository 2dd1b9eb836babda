"""DI-engine's PPO on MountainCarContinuous-v0, for comparison with mountaincar_continuous_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config(
    'bipedalwalker_ppo', 'runs/mountaincar_continuous_ppo', env_of='mountaincar_continuous_grpo'
)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
