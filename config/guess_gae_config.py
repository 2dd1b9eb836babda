"""A critic on the rollouts of grpo: as guess_grpo_config.py, with the value head's advantages."""
from easydict import EasyDict

group_size = 16
guess_gae_config = dict(
    exp_name='runs/guess_gae',
    env=dict(
        collector_env_num=8 * group_size,
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
        group_size=group_size,
        model=dict(
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
        learn=dict(
            batch_size=8,
            learning_rate=5e-4,
            advantage='gae',
            gae_lambda=0.95,
            adv_method='batch',
            reduction='constant',
            entropy_weight=0.02,
        ),
        collect=dict(n_sample=8),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(guess_gae_config)

guess_gae_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(guess_gae_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
