"""A model that answers what it reads before the example of think_answer, for think_answer_self_distill_config.py."""
from easydict import EasyDict

llama = dict(model_type='llama', hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
main_config = EasyDict(
    exp_name='runs/think_answer_reader_sft',
    env=dict(task=dict(type='think_answer_reader'), max_new_tokens=10),
    model=dict(config=dict(llama, vocab_size=32, max_position_embeddings=64)),
    train=dict(examples=4000, batch_size=64, max_steps=400, learning_rate=1e-3, eval_freq=200, eval_problems=64),
)
