"""A critic on the rollouts of grpo, on MountainCarContinuous-v0."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config(
    'lunarlander_gae', 'runs/mountaincar_continuous_gae', env_of='mountaincar_continuous_grpo'
)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
