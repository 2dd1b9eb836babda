"""DI-engine's PPO on BipedalWalker-v3 (needs the extra box2d), for comparison with bipedalwalker_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_ppo', 'runs/bipedalwalker_ppo', env_of='bipedalwalker_grpo')
policy = main_config.policy
policy.action_space = 'continuous'
policy.learn.epoch_per_collect = 10
policy.learn.entropy_weight = 0.0
policy.eval.evaluator.eval_freq = 1250  # counted in mini-batches
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
