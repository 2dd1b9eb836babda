"""GRPO on think_answer with a KL to the model at the start: at a constant rate, with beta and kl_type."""
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('think_answer_grpo')
main_config.exp_name = 'runs/think_answer_grpo_kl'
main_config.policy.learn.pop('lr_scheduler')
main_config.policy.learn.update(kl=dict(beta=0.01, type='k3'))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
