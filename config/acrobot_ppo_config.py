"""DI-engine's PPO on Acrobot-v1: same environment, evaluator and network as acrobot_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_ppo', 'runs/acrobot_ppo', env_of='acrobot_grpo')
main_config.env.collector_env_num = 8
policy = main_config.policy
policy.learn.update(epoch_per_collect=4, learning_rate=5e-4)
policy.learn.entropy_weight = 0.0
policy.collect.gae_lambda = 0.94
policy.eval.evaluator.eval_freq = 128  # counted in mini-batches; one collect gives 128
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
