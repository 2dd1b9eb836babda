"""DI-engine's token-level PPO on guess: the game and the network of guess_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_ppo', 'runs/guess_ppo', env_of='guess_grpo')
main_config.env.collector_env_num = 128
policy = main_config.policy
policy.learn.update(learning_rate=5e-4, entropy_weight=0.02)
policy.collect.n_sample = 640
policy.eval.evaluator.eval_freq = 80  # counted in mini-batches; one collect gives 8
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
