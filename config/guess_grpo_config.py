"""GRPO on guess: a tiny language model learns to find a number in three turns."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

llama = dict(model_type='llama', hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
main_config = EasyDict(
    exp_name='runs/guess_grpo',
    # A turn is a word and its end, and so is a reply. It is solved if all seven numbers are found with greedy decoding.
    env=dict(task=dict(type='guess'), max_turns=3, max_new_tokens=2, max_reply_tokens=2, stop_value=1.0),
    policy=dict(
        group_size=16,
        model=dict(config=dict(llama, max_position_embeddings=32)),
        learn=dict(
            batch_groups=8,
            learning_rate=5e-4,
            advantage='return_to_go_by_step',  # by turn
            adv_method='no_std',
            reduction='constant',
            entropy=dict(weight=0.02),
        ),
        collect=dict(groups=8),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
