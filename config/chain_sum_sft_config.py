"""Warm start for chain_sum_grpo_config.py: supervised fine-tuning of a small Llama on sums with their results."""
from easydict import EasyDict

sums = dict(min_terms=2, max_terms=3, min_digits=1, max_digits=2)
llama = dict(model_type='llama', hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4)
task = dict(type='reasoning_gym', name='chain_sum', config=sums, eval_size=512)
main_config = EasyDict(
    exp_name='runs/chain_sum_sft',
    env=dict(task=task, max_new_tokens=8, max_prompt_length=96),
    model=dict(config=dict(llama, max_position_embeddings=128)),
    train=dict(examples=4000, batch_size=32, max_steps=1000, learning_rate=1e-3, eval_freq=100, eval_problems=512),
)
