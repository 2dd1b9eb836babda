"""GRPO on Acrobot-v1. The advantage compares each step's return-to-go with that of the group at the same step."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/acrobot_grpo')
main_config.env.update(env_id='Acrobot-v1', stop_value=-100)
policy = main_config.policy
policy.group_size = 4
policy.model.update(obs_shape=6, action_shape=3)
policy.learn.update(epoch_per_collect=10, target_kl=0.02, learning_rate=3e-3, extend_truncated=True)
policy.eval.evaluator.eval_freq = 1
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
