"""Token-level PPO with a KL to the model at the start, at the coefficient of think_answer_grpo_kl_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_ppo', 'runs/think_answer_ppo_kl')
main_config.policy.learn.update(batch_size=640, kl=dict(beta=0.01, type='k3'))
main_config.policy.eval.evaluator.eval_freq = 16  # counted in mini-batches; one collect gives 8
create_config.policy.type = 'ppo_kl'
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
