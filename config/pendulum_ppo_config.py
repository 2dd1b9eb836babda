"""DI-engine's PPO on Pendulum-v1: same environment, evaluator and network as pendulum_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_ppo', 'runs/pendulum_ppo', env_of='pendulum_grpo')
main_config.env.collector_env_num = 16
policy = main_config.policy
policy.action_space = 'continuous'
policy.learn.entropy_weight = 0.0
policy.learn.ignore_done = True  # every episode is truncated, none terminates
policy.collect.update(discount_factor=0.9, gae_lambda=0.95)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
