"""GRPO on Atari Breakout (extra atari): 32 lives from each start, with the environment of breakout_gae_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('breakout_gae', 'runs/breakout_grpo')
policy = main_config.policy
policy.group_size = 32
policy.learn.pop('critic')
policy.learn.update(advantage='return_to_go_by_step', learning_rate=5e-4, entropy=dict(weight=0.05))
policy.collect.groups = 2
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
