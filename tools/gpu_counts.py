"""
What a GPU would have to launch and to wait for, counted on a CPU by a simulated GPU (tests/simulated_gpu). With
--write, docs/results/gpu_counts.md.
"""
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

import click
import torch
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ding_grpo  # noqa: E402, F401
from ding_grpo.instruments.watch import EACH_BEFORE  # noqa: E402
from ding_grpo.model import CausalLM, PromptBatch  # noqa: E402
from ding_grpo.rl_utils import linear_log_prob  # noqa: E402
from ding_grpo.rollout import Sampling, generate  # noqa: E402
from tests.policies import reward, sample_groups, token_policy, update  # noqa: E402
from tests.simulated_gpu import SimulatedGPU  # noqa: E402

PAGE = ROOT / 'docs' / 'results' / 'gpu_counts.md'
WIDE = dict(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
KINDS = {
    'llama': WIDE,
    'qwen3': dict(WIDE, head_dim=16),
    'gemma3_text': dict(WIDE, head_dim=16, sliding_window=512),
    'gemma3_text, window 16': dict(WIDE, head_dim=16, sliding_window=16),  # shorter than the rows
    'mixtral': dict(WIDE, **EXPERTS),
}
PROMPTS = dict(even=[32] * 8, uneven=[5, 60, 17, 40, 23, 9, 51, 33])
ROWS, TOKENS, LAYERS = 4, 32, (2, 4)
ENDS = range(12)  # of 1,000 tokens: about a third of the rows end before the last token


class Found(NamedTuple):
    """What one architecture needs: launches for each layer, launches beside the layers, and waits. A step is a token of
    each row by itself; a token is what a whole collect takes divided by the tokens of its longest row."""
    step_of_layer: float
    token_of_layer: float
    token: float
    token_waits: float
    forward_of_layer: float
    backward_of_layer: float
    batch: float
    batch_waits: float


def count(kind: str, prompts: str) -> Found:
    """Sample ``ROWS`` completions of each prompt, and learn them as one batch. Keys of ``KINDS`` and ``PROMPTS``."""
    few, many = (_counted(kind, prompts, layers) for layers in LAYERS)

    def of_layer(part: str) -> float:
        return (many[part] - few[part]) / (LAYERS[1] - LAYERS[0])

    step, forward, backward, token = map(of_layer, ('step', 'forward', 'backward', 'sampled'))
    beside = few['forward'] + few['backward'] - LAYERS[0] * (forward + backward)
    return Found(
        step, token / few['tokens'], (few['sampled'] - LAYERS[0] * token) / few['tokens'],
        few['token waits'] / few['tokens'], forward, backward, beside, few['batch waits']
    )


def _counted(kind: str, prompts: str, layers: int) -> Counter:
    found = Counter()
    with SimulatedGPU() as gpu:
        torch.manual_seed(0)
        model = CausalLM(config=dict(KINDS[kind], model_type=kind.split(',')[0], num_hidden_layers=layers)).to('cuda')
        assert model.shares_prompts
        generator = torch.Generator().manual_seed(1)
        rows = [torch.randint(12, 1000, (n, ), generator=generator) for n in PROMPTS[prompts]]
        batch = PromptBatch.of([row for row in rows for _ in range(ROWS)], torch.device('cuda'))
        uniform = torch.rand(len(rows) * ROWS, TOKENS, dtype=torch.double, generator=generator).to('cuda')
        gpu.counts.reset()
        rollout = generate(model, batch, TOKENS, ENDS, Sampling(), uniform)
        found['sampled'], found['token waits'] = gpu.counts.launches.total(), gpu.counts.waits.total()
        found['tokens'] = rollout.action.shape[1]
        found.update({f'token {kind}': number for kind, number in gpu.counts.copies.items()})
        action = rollout.action.clamp(min=0)
        with torch.no_grad(), model.arithmetic():
            decoding = model.start(batch)
            for place in range(2):  # the second finds room for its keys
                gpu.counts.reset()
                decoding.step(action[:, place])
        found['step'] = gpu.counts.launches.total()
        gpu.counts.reset()
        hidden = model.completion_hidden(batch, action, rollout.length)
        logp = linear_log_prob(hidden, index=action, **model.output_head()._asdict())
        found['forward'] = gpu.counts.launches.total()
        logp.sum().backward()
        found['backward'] = gpu.counts.launches.total() - found['forward']
        found['batch waits'] = gpu.counts.waits.total()
        found.update({f'batch {kind}': number for kind, number in gpu.counts.copies.items()})
    return found


class Copies(NamedTuple):
    """Copies to the GPU by their memory; the last ones are waited for."""
    pinned: float
    pageable: float
    blocking: float


def copies(prompts: str) -> Tuple[Copies, Copies]:
    """For each sampled token, and for a learned batch, whatever number of layers."""
    found = _counted('llama', prompts, min(LAYERS))
    token, batch = ([found[f'{part} {kind}'] for kind in Copies._fields] for part in ('token', 'batch'))
    return Copies(*(x / found['tokens'] for x in token)), Copies(*batch)


def copies_of_run() -> Tuple[Copies, Copies]:
    """Of a collect, and of its update, which learns a mini-batch in several parts."""
    with SimulatedGPU() as gpu:
        policy, found = token_policy(dict(cuda=True), micro_batch_tokens=32), []
        update(policy)  # the first one also tries the architecture
        gpu.counts.reset()
        groups = sample_groups(policy, collect=1, reward=reward)
        found.append(gpu.counts.copies)
        gpu.counts.reset()
        policy.learn_mode.forward(groups)
        found.append(gpu.counts.copies)
        return tuple(Copies(*(x[kind] for kind in Copies._fields)) for x in found)


def waits_of_update() -> Tuple[int, int]:
    """
    Waits of the learning of one mini-batch in one part, with the log of the update: of most updates, and of the first
    ones, in which the instruments look.
    """
    with SimulatedGPU() as gpu:
        policy, waits = token_policy(dict(cuda=True)), []
        for number in range(EACH_BEFORE + 1):
            groups = sample_groups(policy, collect=number, reward=reward)
            gpu.counts.reset()
            policy.learn_mode.forward(groups)
            waits.append(gpu.counts.waits.total())
    return waits[-1], max(waits)


def peak_of_keys() -> float:
    """The most keys and values at a time when half of the rows leave, in multiples of those that were there before."""
    with SimulatedGPU() as gpu, torch.no_grad():
        model = CausalLM(config=dict(WIDE, model_type='llama', num_hidden_layers=16)).to('cuda')
        assert model.shares_prompts
        weights = gpu.counts.live
        decoding = model.start(PromptBatch.of([torch.arange(9)] * 64, torch.device('cuda')))
        for _ in range(100):
            decoding.step(torch.zeros(64, dtype=torch.long, device='cuda'))
        gpu.counts.reset()
        before = gpu.counts.live - weights
        decoding.keep(torch.arange(32, device='cuda'))
        return (gpu.counts.peak - weights) / before


def table(found: Dict[Tuple[str, str], Found]) -> str:
    """Of the page."""
    rows = [[*names, *(f'{x:.1f}' for x in counts)] for names, counts in found.items()]
    head = [
        'model', 'prompts', 'a step: launches for each layer', 'a token: launches for each layer', 'beside the layers',
        'waits', 'a batch: launches for each layer, forward', 'backward', 'beside the layers', 'waits'
    ]
    return tabulate(rows, head, tablefmt='github', disable_numparse=True)


def _of_text(sent: List[Copies]) -> Dict[str, str]:
    names = ('of_token', 'of_batch', 'of_collect', 'of_update')
    numbers = {name: f'{x.pageable:.3g} + {x.pinned:.3g}' for name, x in zip(names, sent)}
    return dict(numbers, blocking=f'{sum(x.blocking for x in sent):.3g}')


@click.command(help=__doc__)
@click.option('--write', is_flag=True, help='Write the page.')
def main(write: bool) -> None:
    """Count every architecture with both kinds of prompts."""
    found = {}
    for kind in KINDS:
        for prompts in PROMPTS:
            found[kind, prompts] = count(kind, prompts)
            click.echo(f'{kind}, {prompts} prompts: {found[kind, prompts]}')
    click.echo(table(found))
    waits, peak = waits_of_update(), peak_of_keys()
    click.echo(f'waits of an update: {waits}; peak of keys and values: {peak:.2f}')
    sent = [*copies('uneven'), *copies_of_run()]
    click.echo('copies to the GPU: {}; {}; {}; {}'.format(*sent))
    if write:
        text = TEXT.format(table=table(found), waits=waits[0], first=waits[1], peak=peak, **_of_text(sent))
        PAGE.write_text(text, encoding='utf-8')
        click.echo(f'wrote {PAGE}')


TEXT = '''# Counts of a simulated GPU

`python tools/gpu_counts.py --write` writes this page, on a CPU. No GPU took part.

A simulated GPU (`tests/simulated_gpu/`) runs every operation on the CPU, and counts those that a GPU would launch.
Operations of two devices are an error, as they are on a GPU.

{table}

- 8 prompts, of 32 tokens each or of 5 to 60, with 4 rows each and at most 32 new tokens; some rows end before.
  Random models of 2 and of 4 layers in float32: the difference is what a layer needs.
- A step reads one token of each row. A token is all of a collect divided by the tokens of its longest row: steps,
  prompts, and rows that leave.
- A launch is an operation of torch that computes or copies. Views and allocations launch nothing. A library may launch
  several kernels for one operation, so these are lower bounds.
- A wait is an operation after which the CPU needs a number, or a size, that the GPU computes.
- Copies to the GPU are counted apart, from pageable + from pinned memory (more than 64 KiB): {of_token} for a token,
  before the first one and when lines divide or rows leave, and {of_batch} for a batch of the uneven prompts;
  {of_collect} in a collect of think_answer, small, and {of_update} in its update, which learns a mini-batch in several
  parts. {blocking} of them are waited for.
- A batch is learned in one pass, forward and backward, without the optimizer.
- A whole update of think_answer, small, with one mini-batch in one part, waits {waits} times; {first} times among the
  first ten, in which the instruments read the rows twice more.
- When half of the rows of 16 layers leave, the most keys and values at a time are {peak:.2f} of those before.

`tests/simulated_gpu/test_budgets.py` fails when a number grows.
'''

if __name__ == '__main__':
    main()
