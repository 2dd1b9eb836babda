"""DI-engine's token-level PPO on spell_backward: the task and the model of spell_backward_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_ppo', 'runs/spell_backward_ppo', env_of='spell_backward_grpo')
policy = main_config.policy
policy.model.pop('config')  # of the random model of think_answer
policy.learn.update(batch_size=512, learning_rate=2e-4, entropy_weight=0.0, adv_norm=False)
policy.learn.lr_scheduler = dict(epoch_num=100, min_lr_lambda=0.0)  # linear, over 100 collects
policy.collect.update(n_sample=2048, gae_lambda=1.0)
policy.eval.evaluator.eval_freq = 80  # counted in mini-batches; one collect gives 8
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
