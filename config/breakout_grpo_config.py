"""GRPO on Atari Breakout (extra atari): groups of eight games from the same start."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('breakout_gae', 'runs/breakout_grpo')
main_config.policy.group_size = 8
main_config.policy.learn.pop('critic')
main_config.policy.learn.update(advantage='return_to_go_by_step')
main_config.policy.collect.groups = 2
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
