"""GRPO on think_answer with a KL to the model at the start: at a constant rate, with beta and kl_type."""
from easydict import EasyDict

group_size = 16
think_answer_grpo_kl_config = dict(
    exp_name='runs/think_answer_grpo_kl',
    env=dict(
        collector_env_num=16 * group_size,
        evaluator_env_num=4,
        n_evaluator_episode=4,
        stop_value=1.0,  # all four questions solved with greedy decoding
        task=dict(type='think_answer'),
        max_new_tokens=10,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(
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
        learn=dict(
            batch_size=8,
            learning_rate=1e-4,
            clip_ratio=0.2,
            beta=0.01,
            kl_type='k3',
            adv_method='no_std',
            entropy_weight=0.015,
        ),
        collect=dict(n_sample=16, temperature=1.0),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(think_answer_grpo_kl_config)

think_answer_grpo_kl_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(think_answer_grpo_kl_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
