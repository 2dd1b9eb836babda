"""DI-engine's PPO on LunarLanderContinuous-v3 (needs the extra box2d), as in lunarlander_continuous_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config(
    'lunarlander_ppo', 'runs/lunarlander_continuous_ppo', env_of='lunarlander_continuous_grpo'
)
main_config.policy.action_space = 'continuous'
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
