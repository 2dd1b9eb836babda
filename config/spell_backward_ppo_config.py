"""DI-engine's token-level PPO on spell_backward: the task and the model of spell_backward_grpo_config.py."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

grpo, _ = shipped_config('spell_backward_grpo')
main_config, create_config = shipped_config('think_answer_ppo')
main_config.exp_name = 'runs/spell_backward_ppo'
main_config.env = EasyDict(grpo.env, collector_env_num=256)
main_config.policy.model = EasyDict(grpo.policy.model, type='causal_lm_vac')
main_config.policy.learn.update(
    batch_size=512,
    learning_rate=2e-4,
    lr_scheduler=dict(epoch_num=100, min_lr_lambda=0.0),  # linear, over 100 collects
    entropy_weight=0.0,
    adv_norm=False,
)
main_config.policy.collect.update(n_sample=2048, gae_lambda=1.0)
main_config.policy.eval.evaluator.eval_freq = 80  # counted in mini-batches; one collect gives 8
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
