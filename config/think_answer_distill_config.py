"""On-policy distillation on think_answer: a solved model teaches a fresh one, without the reward."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_grpo', 'runs/think_answer_distill')
policy = main_config.policy
policy.teacher = dict(pretrained='runs/think_answer_sft/model')  # of: python -m dizoo_llm.sft -c think_answer_sft
policy.group_size = 1  # rows are not compared
# Learn from the teacher alone; the reward is only logged.
policy.learn = dict(batch_groups=128, learning_rate=1e-4, advantage='none')
policy.learn.distillation = dict(divergence='reverse_kl')
policy.collect.groups = 256
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
