"""A critic on the rollouts of grpo: as key_and_door_grpo_config.py, with the value head's advantages."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('key_and_door_grpo', 'runs/key_and_door_gae')
main_config.policy.learn.update(advantage='gae', adv_method='batch', critic=dict(gae_lambda=0.95))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
