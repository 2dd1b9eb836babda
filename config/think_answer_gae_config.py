"""A critic on the rollouts of grpo: think_answer_grpo_config.py at a constant rate, with a value head's advantages."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_grpo', 'runs/think_answer_gae')
learn = main_config.policy.learn
learn.pop('lr_scheduler')
learn.update(batch_groups=2, advantage='gae', adv_method='batch', critic=dict(gae_lambda=0.95))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
