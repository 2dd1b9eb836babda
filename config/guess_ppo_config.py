"""DI-engine's token-level PPO on guess: same game and network as guess_grpo_config.py."""
from easydict import EasyDict

guess_ppo_config = dict(
    exp_name='runs/guess_ppo',
    env=dict(
        collector_env_num=128,
        evaluator_env_num=7,
        n_evaluator_episode=7,
        stop_value=1.0,  # all seven numbers found with greedy decoding
        task=dict(type='guess'),
        max_turns=3,
        max_new_tokens=2,  # a word and the end of the turn
        max_reply_tokens=2,  # with the end of a turn that the limit cut
    ),
    policy=dict(
        cuda=False,
        action_space='discrete',
        model=dict(
            type='causal_lm_vac',
            config=dict(
                model_type='llama',
                vocab_size=14,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=32,
            ),
        ),
        recompute_adv=False,
        traj_len_inf=True,  # complete trajectories, since the reward arrives with the last token of a turn
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=2,
            batch_size=160,
            learning_rate=5e-4,
            value_weight=0.5,
            entropy_weight=0.02,
            clip_ratio=0.2,
            adv_norm=True,
            value_norm=False,
            ppo_param_init=False,  # it would reinitialise the model's weights
        ),
        collect=dict(n_sample=640, discount_factor=1.0, gae_lambda=0.95),
        eval=dict(evaluator=dict(eval_freq=80)),  # counted in mini-batches; one collect gives 8
    ),
)
main_config = EasyDict(guess_ppo_config)

guess_ppo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='ppo'),
)
create_config = EasyDict(guess_ppo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
