"""GRPO on LunarLanderContinuous-v3 (needs the extra box2d), as in lunarlander_grpo_config.py."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('lunarlander_grpo')
main_config.exp_name = 'runs/lunarlander_continuous_grpo'
main_config.env = EasyDict(env_id='LunarLanderContinuous-v3', act_scale=True, n_evaluator_episode=100, stop_value=200)
main_config.policy.model.update(action_shape=2, action_space='continuous')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
