"""GRPO on think_answer: a tiny language model learns to answer four questions in the format that its prompt shows."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

llama = dict(model_type='llama', hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
# The full rate for 200 updates, then down to a tenth until update 300. For a longer run raise num_training_steps.
decay = dict(type='warmup_stable_decay', num_training_steps=300, specific=dict(num_decay_steps=100, min_lr_ratio=0.1))
main_config = EasyDict(
    exp_name='runs/think_answer_grpo',
    env=dict(task=dict(type='think_answer'), max_new_tokens=10, stop_value=1.0),  # 1: all four questions, greedy
    policy=dict(
        group_size=16,
        model=dict(config=dict(llama, max_position_embeddings=64)),
        learn=dict(
            batch_groups=8,
            learning_rate=1e-4,
            lr_scheduler=decay,
            adv_method='no_std',
            clip=dict(ratio=0.2),
            entropy=dict(weight=0.015),
        ),
        collect=dict(groups=16),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
