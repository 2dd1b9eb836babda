"""GRPO on two tasks at once with SmolLM2-135M-Instruct: sums and differences, and products of single digits."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('smollm2_grpo')
main_config.exp_name = 'runs/smollm2_mixture_grpo'
sums = dict(main_config.env.task, weight=2)  # two of three problems
products = dict(
    type='reasoning_gym',
    name='products',
    config=dict(min_terms=2, max_terms=2, min_digits=1, max_digits=1),  # 100 problems
    examples=3,
    size=2000,
    eval_size=24,
    weights=dict(score=0.0, right=1.0),
    weight=1,
)
main_config.env.task = EasyDict(type='mixture', parts=[sums, products])
main_config.env.update(evaluator_env_num=152, n_evaluator_episode=152)  # all held-out problems of both
main_config.policy.pop('run')
learn, collect = main_config.policy.learn, main_config.policy.collect
learn.lr_scheduler.num_training_steps = 120
collect.pop('problem_order')
collect.groups = 16
main_config.policy.eval.evaluator.eval_freq = 10
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
