"""GRPO on two tasks at once with SmolLM2-135M-Instruct: sums and differences, and products of single digits."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('smollm2_grpo', 'runs/smollm2_mixture_grpo')
env, policy = main_config.env, main_config.policy
digits = dict(min_terms=2, max_terms=2, min_digits=1, max_digits=1)  # 100 problems
products = dict(type='reasoning_gym', name='products', config=digits, examples=3, size=2000, eval_size=24)
products['weights'] = dict(score=0.0, right=1.0)
# Two of three problems are sums. All held-out problems of both are evaluated.
env.task = dict(type='mixture', parts=[dict(env.task, weight=2), dict(products, weight=1)])
env.update(evaluator_env_num=152, n_evaluator_episode=152)
policy.pop('run')
policy.learn.lr_scheduler.num_training_steps = 120
policy.collect.pop('problem_order')
policy.collect.groups = 16
policy.eval.evaluator.eval_freq = 10
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
