"""DI-engine's token-level PPO on key_and_door: the game and the network of key_and_door_grpo_config.py."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

grpo, _ = shipped_config('key_and_door_grpo')
main_config, create_config = shipped_config('think_answer_ppo')
main_config.exp_name = 'runs/key_and_door_ppo'
main_config.env = EasyDict(grpo.env, collector_env_num=128)
main_config.policy.model = EasyDict(grpo.policy.model, type='causal_lm_vac')
main_config.policy.learn.update(learning_rate=5e-4, entropy_weight=0.02)
main_config.policy.collect.n_sample = 640
main_config.policy.eval.evaluator.eval_freq = 80  # counted in mini-batches; one collect gives 8
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
