"""A critic on the rollouts of grpo: the environment and the network of cartpole_grpo_config.py, single episodes."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_grpo', 'runs/cartpole_gae')
policy, learn = main_config.policy, main_config.policy.learn
policy.group_size = 1  # the critic is the baseline, so that no other episode from the same start is needed
learn.pop('lr_scheduler')
learn.pop('extend_truncated')  # the critic estimates what follows a time limit
learn.update(advantage='gae', critic=dict(gae_lambda=0.95, value_norm=True))
learn.update(epoch_per_collect=10, target_kl=0.02, batch_groups=8, batch_steps=256, learning_rate=3e-4)
policy.collect.groups = 8
policy.eval.evaluator.eval_freq = 4
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
