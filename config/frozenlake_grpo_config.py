"""GRPO on FrozenLake in words: a tiny language model learns the way to the goal from any safe square."""
from easydict import EasyDict

group_size = 16
frozenlake_grpo_config = dict(
    exp_name='runs/frozenlake_grpo',
    env=dict(
        collector_env_num=8 * group_size,
        evaluator_env_num=11,
        n_evaluator_episode=11,
        stop_value=1.0,  # the goal reached from all eleven squares with greedy decoding
        task=dict(
            type='gym_text',
            id='FrozenLake-v1',
            env_kwargs=dict(desc=['SSSS', 'SHSH', 'SSSH', 'HSSG'], is_slippery=False),  # S: a start
            distinct=True,
        ),
        max_turns=10,
        max_new_tokens=2,  # a word and the end of the turn
        max_reply_tokens=3,  # with the end of a turn that the limit cut
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(
            config=dict(
                model_type='llama',
                vocab_size=17,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
            ),
        ),
        learn=dict(
            batch_size=8,
            learning_rate=4e-4,
            advantage='return_to_go_by_step',  # by turn
            adv_method='no_std',
            reduction='constant',
            entropy_weight=0.005,
        ),
        collect=dict(n_sample=8, discount_factor=0.9),  # short ways are better
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(frozenlake_grpo_config)

frozenlake_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(frozenlake_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
