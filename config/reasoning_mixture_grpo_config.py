"""GRPO on three generators of reasoning-gym with Qwen2.5-0.5B-Instruct. Needs a GPU, and the hub or a model folder."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('gsm8k_grpo', 'runs/reasoning_mixture_grpo')
parts = [
    dict(name='chain_sum', config=dict(max_terms=4, max_digits=2), weight=2),
    dict(name='spell_backward', weight=1),
    dict(name='letter_counting', weight=1),
]
main_config.env = dict(
    task=dict(type='reasoning_gym', mixture=parts, eval_size=300, answer_in='answer_tag'),
    evaluator_env_num=60,
    n_evaluator_episode=300,
    stop_value=1.0,
    max_new_tokens=128,
    max_prompt_length=320,
)
main_config.env.task.template = '{question}\nWrite your final answer as <answer>...</answer>.'
main_config.env.task.weights = dict(score=1.0, right=1.0)
main_config.policy.learn.reward_aggregation = 'normalize_then_sum'
main_config.policy.collect.collector = dict(max_replacements=8)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
