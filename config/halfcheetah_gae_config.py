"""A critic on the rollouts of grpo on HalfCheetah-v5 (extra mujoco): two episodes of 1,000 steps an update."""
import torch.nn as nn
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_gae', 'runs/halfcheetah_gae')
main_config.env.update(env_id='HalfCheetah-v5', act_scale=True, n_evaluator_episode=8, stop_value=1000)
policy = main_config.policy
policy.model.update(obs_shape=17, action_shape=6, action_space='continuous', share_encoder=False, activation=nn.Tanh())
policy.learn.update(target_kl=None, batch_groups=2, batch_steps=64)
policy.learn.ppo_param_init = True  # without it half of the return after 200,000 steps, or less
policy.collect.groups = 2
policy.eval.evaluator.eval_freq = 25
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
