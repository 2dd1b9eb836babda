"""Token-level PPO with a KL to the model at the start, at the coefficient of think_answer_grpo_kl_config.py."""
from easydict import EasyDict

think_answer_ppo_kl_config = dict(
    exp_name='runs/think_answer_ppo_kl',
    env=dict(
        collector_env_num=256,
        evaluator_env_num=4,
        n_evaluator_episode=4,
        stop_value=1.0,  # all four questions solved with greedy decoding
        task=dict(type='think_answer'),
        max_new_tokens=10,
    ),
    policy=dict(
        cuda=False,
        action_space='discrete',
        model=dict(
            type='causal_lm_vac',
            config=dict(
                model_type='llama',
                vocab_size=32,
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
            ),
        ),
        recompute_adv=False,
        traj_len_inf=True,  # complete trajectories, since the reward arrives with the last token
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=2,
            batch_size=640,
            learning_rate=1e-4,
            value_weight=0.5,
            entropy_weight=0.015,
            clip_ratio=0.2,
            beta=0.01,
            kl_type='k3',
            adv_norm=True,
            value_norm=False,
            ppo_param_init=False,  # it would reinitialise the model's weights
        ),
        collect=dict(n_sample=2560, discount_factor=1.0, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=16)),  # counted in mini-batches; one collect gives 8
    ),
)
main_config = EasyDict(think_answer_ppo_kl_config)

think_answer_ppo_kl_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='ppo_kl'),
)
create_config = EasyDict(think_answer_ppo_kl_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
