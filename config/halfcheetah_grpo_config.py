"""GRPO on HalfCheetah-v5 (extra mujoco): two episodes of 1,000 steps an update, as halfcheetah_gae_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/halfcheetah_grpo', env_of='halfcheetah_gae')
policy = main_config.policy
policy.group_size = 2
policy.learn.update(epoch_per_collect=10, target_kl=None, batch_steps=64, learning_rate=3e-4)
policy.learn.ppo_param_init = True
policy.collect.groups = 1
policy.eval.evaluator.eval_freq = 25
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
