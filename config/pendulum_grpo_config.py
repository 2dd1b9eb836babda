"""GRPO on Pendulum-v1. The advantage compares each step's return-to-go with that of the group at the same step."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('lunarlander_grpo', 'runs/pendulum_grpo')
main_config.env.update(env_id='Pendulum-v1', act_scale=True, stop_value=-200)
main_config.policy.model.update(obs_shape=3, action_shape=1, action_space='continuous')
main_config.policy.collect.discount_factor = 0.95
main_config.policy.eval.evaluator.eval_freq = 1
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
