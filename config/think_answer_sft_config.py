"""A solved model of think_answer from its four demonstrations, the teacher of think_answer_distill_config.py."""
from easydict import EasyDict

llama = dict(model_type='llama', hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
main_config = EasyDict(
    exp_name='runs/think_answer_sft',
    env=dict(task=dict(type='think_answer'), max_new_tokens=10),
    model=dict(config=dict(llama, vocab_size=32, max_position_embeddings=64)),
    train=dict(examples=4, batch_size=4, max_steps=100, learning_rate=3e-4, eval_freq=50, eval_problems=4),
)
