"""GRPO on think_answer with a KL to the model at the start: at a constant rate, with beta and kl_type."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_grpo', 'runs/think_answer_grpo_kl')
main_config.policy.learn.pop('lr_scheduler')
main_config.policy.learn.kl = dict(beta=0.01, type='k3')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
