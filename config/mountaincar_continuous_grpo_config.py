"""GRPO on MountainCarContinuous-v0, as in lunarlander_grpo_config.py."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('pendulum_grpo')
main_config.exp_name = 'runs/mountaincar_continuous_grpo'
main_config.env = EasyDict(env_id='MountainCarContinuous-v0', act_scale=True, n_evaluator_episode=100, stop_value=90)
main_config.policy.model.update(obs_shape=2)
main_config.policy.collect.discount_factor = 0.999
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
