"""GRPO on LunarLanderContinuous-v3 (needs the extra box2d), as in lunarlander_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/lunarlander_continuous_grpo')
main_config.env.update(env_id='LunarLanderContinuous-v3', act_scale=True)
main_config.policy.model.update(action_shape=2, action_space='continuous')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
