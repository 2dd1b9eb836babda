"""
Rows of uneven length in one micro-batch: forward and backward of the whole against the sum of its parts, where each
part has rows of similar length. Writes docs/uneven.md.
"""
import os
import time
from typing import List

import click
import torch
from runs import ROOT, machine

from ding_common import import_ding

import_ding()
from ding_grpo.model import CausalLM  # noqa: E402
from ding_grpo.model.decoding import PromptBatch  # noqa: E402
from ding_grpo.model.reading import Trial  # noqa: E402

CPU = torch.device('cpu')
MODEL = dict(
    model_type='qwen2',
    vocab_size=64,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)
# Lengths of the rows, and how the parts are made of them in the order of their lengths.
LOG_NORMAL = torch.empty(64).log_normal_(4.6, 1.0, generator=torch.Generator().manual_seed(0)).clamp(1, 2000).int()
CASES = {
    'one row of 1,024 tokens, 31 of 64': ([1024] + [64] * 31, [1, 31]),
    '64 rows, log-normal, median 100, largest 2,000': ([2000] + LOG_NORMAL.tolist()[1:], [1, 1, 2, 4, 8, 16, 32]),
}


def seconds(model: CausalLM, prompt: torch.Tensor, lengths: List[int]) -> float:
    length = torch.tensor(lengths)
    completion = torch.randint(3, 40, (len(lengths), max(lengths)))
    batch = PromptBatch.of([prompt] * len(lengths), CPU)
    model.zero_grad()
    start = time.perf_counter()
    model.completion_hidden(batch, completion, length).sum().backward()
    return time.perf_counter() - start


@click.command()
@click.option('--rounds', default=7, show_default=True, help='Measurements of each case, which alternate.')
def main(rounds: int) -> None:
    """Measure; write docs/uneven.md."""
    torch.manual_seed(0)
    model = CausalLM(config=MODEL)
    prompt = torch.randint(3, 40, (64, ))
    lines = []
    for way in ('shared', 'padded'):
        if model.reading != way:  # as in an architecture that does not share prompts
            model._reader._trial = Trial(way)
        for name, (lengths, sizes) in CASES.items():
            lengths = sorted(lengths, reverse=True)
            parts = [part.tolist() for part in torch.tensor(lengths).split(sizes)]
            seconds(model, prompt, lengths)
            found = []
            for _ in range(rounds):
                whole = seconds(model, prompt, lengths)
                apart = sum(seconds(model, prompt, part) for part in parts)
                found.append((whole / apart, whole * 1e3, apart * 1e3))
            ratio, whole, apart = (sorted(x) for x in zip(*found))
            half = rounds // 2
            lines.append(
                f'| {name} | `{way}` | {whole[half]:.0f} | {apart[half]:.0f} | '
                f'{ratio[half]:.2f} ({ratio[0]:.2f} to {ratio[-1]:.2f}) |'
            )
            click.echo(lines[-1])
    page = [
        '# Rows of uneven length',
        '',
        '`make uneven` wrote this page: forward and backward of one micro-batch of a small Qwen2 (2 layers, hidden '
        'size 128, prompts of 64 tokens), against the sum of its parts, each of rows of similar length. Medians of '
        f'{rounds} alternating rounds, in milliseconds (smallest to largest ratio). {machine()}.',
        '',
        '| rows | [way of reading](design.md) | whole | sum of parts | ratio |',
        '|---|---|---|---|---|',
        *lines,
        '',
    ]
    with open(os.path.join(ROOT, 'docs', 'uneven.md'), 'w') as f:
        f.write('\n'.join(page))


if __name__ == '__main__':
    main()
