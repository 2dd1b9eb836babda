"""A critic on the rollouts of grpo: as spell_backward_grpo_config.py, with the value head's advantages."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('spell_backward_grpo', 'runs/spell_backward_gae')
main_config.policy.learn.update(advantage='gae', adv_method='batch', critic=dict(gae_lambda=0.95))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
