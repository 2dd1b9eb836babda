"""A critic on the rollouts of grpo, on LunarLanderContinuous-v3 (needs the extra box2d)."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config(
    'lunarlander_gae', 'runs/lunarlander_continuous_gae', env_of='lunarlander_continuous_grpo'
)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
