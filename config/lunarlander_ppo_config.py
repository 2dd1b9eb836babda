"""DI-engine's PPO on LunarLander-v3 (needs the extra box2d), for comparison with lunarlander_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_ppo', 'runs/lunarlander_ppo', env_of='lunarlander_grpo')
main_config.env.collector_env_num = 16
policy = main_config.policy
policy.learn.update(epoch_per_collect=4, learning_rate=3e-4)
policy.collect.update(n_sample=8000, discount_factor=0.999, gae_lambda=0.95)
policy.eval.evaluator.eval_freq = 500  # counted in mini-batches; one collect gives 500
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
