"""Warm start for spell_backward_grpo_config.py: a small Llama imitates a careless teacher."""
from easydict import EasyDict

words = dict(min_word_len=5, max_word_len=7)
llama = dict(model_type='llama', hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4)
task = dict(type='reasoning_gym', name='spell_backward', config=words, eval_size=512)
main_config = EasyDict(
    exp_name='runs/spell_backward_sft',
    env=dict(task=task, max_new_tokens=12, max_prompt_length=64),
    model=dict(config=dict(llama, max_position_embeddings=96)),
    train=dict(
        examples=2500,
        answers='benchmarks/demos/careless_teacher.py',  # omits the last letter of two words in three
        batch_size=32,
        max_steps=800,
        learning_rate=1e-3,
        lr_scheduler='cosine',
        eval_freq=100,
        eval_problems=512,
    ),
)
