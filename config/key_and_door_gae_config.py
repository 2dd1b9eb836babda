"""A critic on the rollouts of grpo: as key_and_door_grpo_config.py, with the value head's advantages."""
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('key_and_door_grpo')
main_config.exp_name = 'runs/key_and_door_gae'
main_config.policy.learn.update(advantage='gae', adv_method='batch', critic=dict(gae_lambda=0.95))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
