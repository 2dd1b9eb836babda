"""GRPO on MountainCarContinuous-v0, as in pendulum_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('pendulum_grpo', 'runs/mountaincar_continuous_grpo')
main_config.env.update(env_id='MountainCarContinuous-v0', stop_value=90)
main_config.policy.model.update(obs_shape=2)
main_config.policy.collect.discount_factor = 0.999
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
