"""A critic on the rollouts of grpo: the environment and the network of cartpole_grpo_config.py, single episodes."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('cartpole_grpo')
main_config.exp_name = 'runs/cartpole_gae'
policy = main_config.policy
policy.group_size = 1  # the critic is the baseline, so that no other episode from the same start is needed
policy.learn = EasyDict(
    epoch_per_collect=10,
    target_kl=0.02,
    batch_groups=8,
    batch_steps=256,
    learning_rate=3e-4,
    grad_clip_value=0.5,
    reduction='token',
    advantage='gae',
    clip=dict(ratio=0.2),
    critic=dict(gae_lambda=0.95, value_norm=True),
)
policy.collect.groups = 8
policy.eval.evaluator.eval_freq = 4
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
