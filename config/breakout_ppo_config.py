"""DI-engine's PPO on Atari Breakout (extra atari), for comparison with breakout_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_ppo', 'runs/breakout_ppo', env_of='breakout_gae')
main_config.env.evaluator_env_num = 8
main_config.policy.learn.update(batch_size=256, learning_rate=1e-3)
main_config.policy.collect.update(n_sample=4096, discount_factor=0.99)
main_config.policy.eval.evaluator.eval_freq = 320
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
