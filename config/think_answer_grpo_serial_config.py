"""GRPO on think_answer with a replay buffer: python -m ding_grpo -m serial -c think_answer_grpo_serial"""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_grpo', 'runs/think_answer_grpo_serial')
main_config.policy.learn.pop('lr_scheduler')
main_config.policy.learn.update(update_per_collect=4, batch_groups=8)  # groups sampled from the buffer per update
# A group is used at most twice, and at most seven updates after the policy that sampled it.
main_config.policy.other = dict(replay_buffer=dict(replay_buffer_size=32, max_use=2, max_staleness=8))
create_config.evaluator = dict(type='group')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__, 'serial')
