"""
The largest model that fits into memory by each way of training, by the formula of ``ding_grpo.footprint``, which
tests/test_footprint.py holds against counted bytes. With --write, docs/results/memory.md. No weight is made.
"""
import sys
from pathlib import Path
from typing import Dict, NamedTuple

import click
import torch
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ding_grpo  # noqa: E402, F401
from ding_grpo.footprint import footprint  # noqa: E402
from ding_grpo.model import CausalLM  # noqa: E402
from ding_grpo.model.lora import add_adapters  # noqa: E402
from ding_grpo.model.quantized import BLOCKS  # noqa: E402

PAGE = ROOT / 'docs' / 'results' / 'memory.md'
# layers, hidden size, size of the gated unit, heads, heads of keys, whether the output layer is the embedding
QWEN = {
    '0.5B': (24, 896, 4864, 14, 2, True),
    '1.5B': (28, 1536, 8960, 12, 2, True),
    '3B': (36, 2048, 11008, 16, 2, True),
    '7B': (28, 3584, 18944, 28, 4, False),
    '14B': (48, 5120, 13824, 40, 8, False),
    '32B': (64, 5120, 27648, 40, 8, False),
    '72B': (80, 8192, 29568, 64, 8, False),
}
MEMORY = (8, 16, 24, 80)  # GiB
TOKENS, ROWS, LENGTH = 4096, 64, 1024
GIBI = 2 ** 30
PROCESS = 0.9  # GiB of the process and its libraries


class Way(NamedTuple):
    """How a model is trained. ``kind``: of ``policy.model.quantize``."""
    model: Dict = {}
    optimizer: str = 'AdamW'
    offload: bool = False
    adapters: bool = False
    kind: str = ''
    processes: int = 1


CHECKPOINTING = dict(gradient_checkpointing=True)
HALF = dict(CHECKPOINTING, dtype='bfloat16')
WAYS = {
    'all weights': Way(),
    'all weights, checkpointing': Way(CHECKPOINTING),
    'all weights, checkpointing, SGD': Way(CHECKPOINTING, 'SGD'),
    'all weights, checkpointing, states on the host': Way(CHECKPOINTING, offload=True),
    'all weights, checkpointing, divided among 8 processes': Way(CHECKPOINTING, processes=8),
    'LoRA': Way(adapters=True),
    'LoRA, bfloat16, checkpointing': Way(HALF, adapters=True),
    'LoRA, 8 bits, bfloat16, checkpointing': Way(HALF, adapters=True, kind='8bit'),
    'LoRA, 4 bits, bfloat16, checkpointing': Way(HALF, adapters=True, kind='4bit'),
}


def needs(size: str, way: Way) -> float:
    """GiB that each process needs for a model of the family."""
    layers, hidden, between, heads, keys, tied = QWEN[size]
    config = dict(
        model_type='qwen2',
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=between,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        tie_word_embeddings=tied,
    )
    with torch.device('meta'):
        model = CausalLM(config=config, **way.model)
        linear = [m.weight.numel() for m in model.trunk.modules() if isinstance(m, torch.nn.Linear)]
        if way.adapters:
            model._peft = (add_adapters(model.lm, dict(r=16, target_modules='all-linear')), )
    found = footprint(model, TOKENS, ROWS, LENGTH, dict(type=way.optimizer, offload=way.offload))
    if way.kind:
        each = int(way.kind[0]) / 8 + 4 / BLOCKS[way.kind]  # bytes, with the scale of a block in float32
        found = found._replace(
            weights=found.weights - sum(linear) * (model.lm.dtype.itemsize - each) + max(linear) * 4
        )  # one is widened
    if way.processes == 1:
        return found.total / GIBI
    part, layer = found._replace(keys=0), 2 * found.weights / layers  # this layer and the next one are whole
    part = part._replace(
        **{name: getattr(found, name) / way.processes
           for name in ('weights', 'gradients', 'optimizer')}
    )
    sampling = found.weights + part.optimizer + found.keys  # by whole weights
    return max(part.total + layer, sampling) / GIBI


@click.command(help=__doc__)
@click.option('--write', is_flag=True, help='Write the page.')
def main(write: bool) -> None:
    """Find the largest model for each way and memory."""
    rows, sizes = [], []
    for name, way in WAYS.items():
        found = {size: needs(size, way) for size in QWEN}
        sizes.append([name, *(f'{x:,.1f}' for x in found.values())])
        fitting = [[size for size, x in found.items() if x + PROCESS <= most] for most in MEMORY]
        rows.append([name, *(x[-1] if x else '-' for x in fitting)])
        click.echo(f'{name}: {found}')
    largest = tabulate(rows, ['way', *(f'{most} GiB' for most in MEMORY)], tablefmt='github', disable_numparse=True)
    needed = tabulate(sizes, ['way', *QWEN], tablefmt='github', disable_numparse=True)
    click.echo(largest)
    if write:
        text = TEXT.format(largest=largest, needed=needed, tokens=TOKENS, rows=ROWS, length=LENGTH, process=PROCESS)
        PAGE.write_text(text, encoding='utf-8')
        click.echo(f'wrote {PAGE}')


TEXT = '''# The largest model by memory

`python tools/memory_table.py --write` writes this page, without making a weight: by the formula that `--check` prints
for a config. `tests/test_footprint.py` holds the formula against the bytes that a [simulated GPU](gpu_counts.md)
counts in six ways of training: within 10 % is asked, within 2 % was found. It was not compared with a real GPU.

Models have the shapes of Qwen2.5. Learning reads {tokens:,} tokens at a time (`learn.micro_batch_tokens`); {rows} rows
of {length:,} tokens are sampled together. The process itself counts {process} GiB. Weights are float32 where nothing
else is said, adapters always. A KL to a reference adds the weights once more, but not with LoRA.

{largest}

GiB without the process:

{needed}

- Divided among processes (`policy.shard`), each samples with whole weights, which is then the limit.
- In 4 and 8 bits the weights of linear layers are small; the embedding is not. One weight at a time is widened.
  Those of safetensors files become small as they are read, on the CPU, so that loading needs no more than the small
  model and a few of its weights (`tests/model/test_weight_by_weight.py`); with adapters that are merged first it needs
  the whole model.
- With `autocast` activations are up to 11 % more than the formula says.
'''

if __name__ == '__main__':
    main()
