"""GRPO on think_answer, sampled by another process while the policy learns: one update behind."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_grpo', 'runs/think_answer_grpo_stale')
main_config.policy.learn.pop('lr_scheduler')
main_config.policy.learn.off_policy = dict(correction='token')
main_config.policy.collect.max_staleness = 1
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
