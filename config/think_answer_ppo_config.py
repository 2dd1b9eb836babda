"""DI-engine's token-level PPO on think_answer: the task and the network of think_answer_grpo_config.py."""
from easydict import EasyDict
from ding_common import shipped_config
from ding_grpo.entry import complete, run

grpo, _ = shipped_config('think_answer_grpo')
main_config = EasyDict(
    exp_name='runs/think_answer_ppo',
    env=dict(grpo.env, collector_env_num=256),
    policy=dict(
        model=dict(grpo.policy.model, type='causal_lm_vac'),
        recompute_adv=False,
        traj_len_inf=True,  # complete trajectories, since the reward arrives with the last token
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            ppo_param_init=False,  # it would reinitialise the model's weights
            epoch_per_collect=2,
            batch_size=160,
            learning_rate=1e-4,
            entropy_weight=0.015,
            value_norm=False,
        ),
        collect=dict(n_sample=2560, discount_factor=1.0, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=64)),  # counted in mini-batches; one collect gives 32
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='ppo')))

if __name__ == '__main__':
    run(__file__)
