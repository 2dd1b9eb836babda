"""GRPO on BipedalWalker-v3 (needs the extra box2d), as in lunarlander_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/bipedalwalker_grpo')
main_config.env.update(env_id='BipedalWalker-v3', act_scale=True, stop_value=300)
main_config.policy.model.update(obs_shape=24, action_shape=4, action_space='continuous')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
