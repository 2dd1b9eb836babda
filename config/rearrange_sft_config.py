"""Warm start for rearrange_grpo_config.py: a small Llama imitates demonstrations that skip steps, and corrections."""
from easydict import EasyDict

llama = dict(model_type='llama', hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4)
main_config = EasyDict(
    exp_name='runs/rearrange_sft',
    env=dict(task=dict(type='rearrange_careless'), max_new_tokens=31, max_prompt_length=25),
    model=dict(config=dict(llama, max_position_embeddings=64)),
    train=dict(
        examples=None,  # new ones in every step
        batch_size=32,
        max_steps=600,
        learning_rate=1e-3,
        lr_scheduler='cosine',
        eval_freq=300,
        eval_problems=128,
    ),
)
