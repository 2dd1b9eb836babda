"""
Ways to be faster that were tried, alternating at one size: options of this project's model, torch.compile, and
``transformers``' own ways to generate.
"""
import copy
import json
import time
from typing import Callable, Dict, List

import click
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.costs.growth import BASE, Update, spread
from ding_grpo.rl_utils.log_probs.matrix_product import multiplies_bfloat16

OPTIONS = {
    'default': {},
    '`policy.model.onednn=False`': dict(onednn=False),
    '`policy.model.onednn=False`, torch.compile': dict(onednn=False),
}
if multiplies_bfloat16('cpu'):  # otherwise they take up to a hundred times as long
    OPTIONS.update(
        {
            "`policy.model.autocast='bfloat16'`": dict(autocast='bfloat16'),
            "`policy.model.dtype='bfloat16'`": dict(dtype='bfloat16'),
        }
    )


def alternate(functions: Dict[str, Callable], rounds: int) -> Dict[str, List[float]]:
    """Median, smallest and largest of seconds; the first round does not count."""
    seconds: Dict[str, List[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number > 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: spread(values) for name, values in seconds.items()}


def options(rounds: int) -> Dict[str, List[List[float]]]:
    """Sampling and learning with each of ``OPTIONS``."""
    updates = {name: Update(**BASE, **option) for name, option in OPTIONS.items()}
    for name, update in updates.items():
        if name.endswith('torch.compile'):
            update.model.lm.base_model.compile(dynamic=False)
    parts = [alternate({n: getattr(u, part) for n, u in updates.items()}, rounds) for part in ('sample', 'learn')]
    return {name: [part[name] for part in parts] for name in updates}


def generation(rounds: int) -> Dict[str, List[float]]:
    """Sampling by ``transformers`` beside this project's; all make the same number of tokens."""
    update = Update(**BASE)
    config, tokens = copy.deepcopy(update.model.lm.config), BASE['completion']
    lm = AutoModelForCausalLM.from_config(config, attn_implementation='sdpa').eval()
    ids = torch.stack(update.prompts)  # (B, L)

    @torch.no_grad()
    def generate(**how) -> None:
        out = lm.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            eos_token_id=0,
            pad_token_id=0,
            **how
        )
        assert out.shape == (len(ids), ids.shape[1] + tokens)

    def continuous() -> None:
        config = GenerationConfig(do_sample=True, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0)
        out = lm.generate_batch(inputs=ids.tolist(), generation_config=config)
        assert [len(o.generated_tokens) for o in out.values()] == [tokens] * len(ids)

    ways = {
        'this project': update.sample,
        '`generate`': generate,
        '`generate`, static cache': lambda: generate(cache_implementation='static', disable_compile=True),
    }
    # last and by itself: it leaves the model with another attention
    return {**alternate(ways, rounds), '`generate_batch` (continuous batching)': alternate({'': continuous}, 1)['']}


@click.command()
@click.option('--rounds', default=5, show_default=True)
@click.option('--threads', default=1, show_default=True)
@click.option('--out', default=None, help='File for the figures as JSON.')
def main(rounds: int, threads: int, out: str) -> None:
    """Measure what options do, and what transformers' own ways take."""
    torch.set_num_threads(threads)
    found = dict(options=options(rounds), generation=generation(rounds))
    for section in found.values():
        for name, values in section.items():
            click.echo(f'{name}  {values}')
    if out is not None:
        with open(out, 'w') as f:
            json.dump(dict(found, base=BASE), f, indent=1)


if __name__ == '__main__':
    main()
