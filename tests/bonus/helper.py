"""A small run of ``GRPO``."""
from ding_grpo import GRPO

CHARS = '0123456789+='
TINY = dict(
    model_type='llama',
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=32
)
ROWS = [dict(question=f'{a}+{b}=', answer=str(a + b)) for a in range(5) for b in range(5)]


def right(completion, answer):
    return float(completion == answer)


def small(**keywords):
    keys = dict(
        model=dict(config=TINY),
        data=ROWS,
        reward=right,
        group_size=4,
        groups=4,
        max_new_tokens=2,
        learning_rate=1e-2,
        exp_name='run',
        **{'env.tokenizer': dict(chars=CHARS)}
    )
    return GRPO(**{**keys, **keywords})
