"""A critic on the rollouts of grpo, on BipedalWalker-v3 (needs the extra box2d)."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_gae', 'runs/bipedalwalker_gae', env_of='bipedalwalker_grpo')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
