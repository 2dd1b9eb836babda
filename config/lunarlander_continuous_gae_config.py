"""A critic on the rollouts of grpo, on LunarLanderContinuous-v3 (needs the extra box2d)."""
from ding_common import shipped_config
from ding_grpo.entry import complete, run

grpo, _ = shipped_config('lunarlander_continuous_grpo')
main_config, create_config = shipped_config('lunarlander_gae')
main_config.exp_name = 'runs/lunarlander_continuous_gae'
main_config.env = grpo.env
main_config.policy.model.update(action_shape=2, action_space='continuous')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
