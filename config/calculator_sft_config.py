"""Warm start for calculator_grpo_config.py: a small Llama imitates dialogues of which every second one is wrong."""
from easydict import EasyDict

calculator = dict(type='tools', task=dict(type='products'), functions=['dizoo_llm.tasks.calculator:calc'])
llama = dict(model_type='llama', hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
main_config = EasyDict(
    exp_name='runs/calculator_sft',
    env=dict(
        task=dict(calculator, demonstration='dizoo_llm.tasks.products:half_right'),
        max_turns=2,  # the call and the answer
        max_new_tokens=76,
        max_reply_tokens=64,
        max_prompt_length=6,
    ),
    model=dict(config=dict(llama, max_position_embeddings=224)),
    train=dict(
        examples=None,  # new ones in every step
        batch_size=32,
        max_steps=600,
        learning_rate=2e-3,
        lr_scheduler='cosine',
        eval_freq=200,
        eval_problems=100,
    ),
)
