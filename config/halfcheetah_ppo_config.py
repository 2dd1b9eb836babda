"""DI-engine's PPO on HalfCheetah-v5 (extra mujoco), for comparison with halfcheetah_gae_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('pendulum_ppo', 'runs/halfcheetah_ppo', env_of='halfcheetah_gae')
main_config.env.evaluator_env_num = 8
policy = main_config.policy
policy.learn.learning_rate = 3e-4
policy.collect.discount_factor = 0.99
policy.eval.evaluator.eval_freq = 3200  # counted in mini-batches
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
