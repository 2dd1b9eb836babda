"""GRPO on FrozenLake in words: a tiny language model learns the way to the goal from any safe square."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

llama = dict(model_type='llama', hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
maze = dict(desc=['SSSS', 'SHSH', 'SSSH', 'HSSG'], is_slippery=False)  # S: a start
lake = dict(type='gym_text', id='FrozenLake-v1', env_kwargs=maze, distinct=True)
main_config = EasyDict(
    exp_name='runs/frozenlake_grpo',
    # A turn is a word and its end. It is solved if the goal is reached from all eleven squares with greedy decoding.
    env=dict(task=lake, max_turns=10, max_new_tokens=2, max_reply_tokens=3, stop_value=1.0),
    policy=dict(
        group_size=16,
        model=dict(config=dict(llama, max_position_embeddings=64)),
        learn=dict(
            batch_groups=8,
            learning_rate=4e-4,
            advantage='return_to_go_by_step',  # by turn
            adv_method='no_std',
            reduction='constant',
            entropy=dict(weight=0.005),
        ),
        collect=dict(groups=8, discount_factor=0.9),  # short ways are better
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
