"""GRPO on HalfCheetah-v5 (extra mujoco): groups of eight episodes of 1,000 steps."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

gae, _ = shipped_config('halfcheetah_gae')
main_config, create_config = shipped_config('lunarlander_grpo')
main_config.exp_name = 'runs/halfcheetah_grpo'
main_config.env = EasyDict(env_id='HalfCheetah-v5', act_scale=True, n_evaluator_episode=8, stop_value=1000)
main_config.policy.model = gae.policy.model
main_config.policy.learn.ppo_param_init = True
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
