"""A small reward model for think_answer: python -m dizoo_llm.train_reward_model -c think_answer_reward_model"""
from easydict import EasyDict

llama = dict(model_type='llama', hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
main_config = EasyDict(
    exp_name='runs/think_answer_reward_model',
    env=dict(task=dict(type='think_answer'), max_new_tokens=10),
    model=dict(config=dict(llama, max_position_embeddings=64)),
    train=dict(
        pairs='benchmarks/kl/think_answer_pairs.py',
        number=2000,
        held_out=500,
        batch_size=32,
        epochs=5,
        learning_rate=1e-3,
        eval_freq=50,
    ),
)
