"""GRPO on HalfCheetah-v5 (extra mujoco): groups of eight episodes of 1,000 steps."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/halfcheetah_grpo', env_of='halfcheetah_gae')
main_config.policy.learn.ppo_param_init = True
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
