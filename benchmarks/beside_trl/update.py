"""
Whole updates beside TRL's, on one machine, with the same weights, prompts, sizes, sampling and optimizer. The sides
alternate update by update. Writes benchmarks/results.json and docs/speed.md.
"""
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, NamedTuple

import ding_grpo  # noqa: F401  first, so that DI-engine's import is quiet

import click
from tabulate import tabulate

from ding_grpo.model import CausalLM
from ding_grpo.policy.watch import EACH_BEFORE, EVERY
from dizoo_llm.tokenizer import build_word_tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.dirname(HERE))
from hardware import machines, measured_on  # noqa: E402
from results import add, paired  # noqa: E402

GROWTH = os.path.join(os.path.dirname(HERE), 'growth.json')  # what growth.py and choices.py have found
PROBLEMS = 400
UPDATES = 100  # of a run, see ``as_in_a_run``
LOOKS = sum(update < EACH_BEFORE or update % EVERY == 0 for update in range(UPDATES))
SPIN = '30000'  # threads wait awake between two operations and sleep while the other side has its turn


class Work(NamedTuple):
    """
    Overview:
        Sizes of an update: eight prompts, and how many times the sides alternate.
    """
    prompt_tokens: int
    tokens: int
    group_size: int
    vocabulary: int
    rounds: int
    groups: int = 8

    @property
    def name(self) -> str:
        more = f'_V{self.vocabulary}' if self.vocabulary != 32 else ''
        return f'update_L{self.prompt_tokens}_T{self.tokens}_G{self.group_size}{more}'


# First those in which a prompt is no longer than its completion: little is gained by reading it once.
WORKS = [
    Work(16, 256, 8, 32, 5),
    Work(64, 512, 8, 32, 5),
    Work(16, 512, 4, 32, 5),
    Work(96, 256, 8, 32, 5),
    Work(19, 16, 8, 32, 31),
    Work(256, 32, 8, 32, 9),
    Work(512, 64, 16, 32, 5),
    Work(256, 32, 8, 32000, 5),
]


def make_work(work: Work, folder: str) -> None:
    """
    Overview:
        Write model, tokenizer and prompts.
    """
    words = [f'w{i}' for i in range(work.vocabulary - 3)]
    model = CausalLM(
        config=dict(
            model_type='llama',
            vocab_size=work.vocabulary,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=1024,
        )
    )
    model.save_pretrained(os.path.join(folder, 'model'), build_word_tokenizer(words))
    chosen = random.Random(0)
    prompts = [' '.join(chosen.choices(words, k=work.prompt_tokens)) for _ in range(PROBLEMS)]
    half = len(words) // 2
    with open(os.path.join(folder, 'work.json'), 'w') as f:
        json.dump(dict(work._asdict(), prompts=prompts, low=list(range(half)), low_words=words[:half]), f)


class Side:
    """
    Overview:
        A process that makes updates.
    """

    def __init__(self, python: str, script: str, folder: str, threads: int) -> None:
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), GOMP_SPINCOUNT=SPIN, HF_HUB_OFFLINE='1')
        self._log = open(os.path.join(folder, script + '.log'), 'w')
        command = [python, os.path.join(HERE, script), folder, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env
        )
        self.begun = self._read()

    def update(self) -> Dict[str, Any]:
        """One more."""
        return as_in_a_run(self._ask('go'))

    def record(self) -> Dict[str, Any]:
        """One more, with its matrix products written down."""
        return self._ask('record')

    def profile(self) -> Dict[str, Any]:
        """One more, with the time of its operations by kind."""
        return self._ask('profile')

    def save(self, folder: str) -> str:
        """Save the model; gives the folder."""
        self._ask(f'save {folder}')
        return folder

    def check(self) -> List[float]:
        """Loss and gradient norm of equal data."""
        return self._ask('check')['check']

    def _ask(self, word: str) -> Dict[str, Any]:
        self._process.stdin.write(word + '\n')
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        """No more."""
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _read(self) -> Dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            with open(self._log.name) as f:
                raise click.ClickException(f'{self._log.name} ended:\n{f.read()[-3000:]}')
        return json.loads(line)


def as_in_a_run(update: Dict[str, Any]) -> Dict[str, Any]:
    """
    Overview:
        The instruments look closely at some updates of a run, and at every update here: of that time, count the share \
        that an update of a run of ``UPDATES`` has in the mean.
    """
    looks = update.get('seconds_looks', 0.0)
    found = dict(update, seconds=update['seconds'] - looks * (1 - LOOKS / UPDATES))
    if looks > 0:
        found.update(seconds_updating=update['seconds_updating'] - looks, seconds_looks=looks * LOOKS / UPDATES)
    return found


def alternate(work: Work, peer_python: str, threads: int) -> Dict[str, Any]:
    """
    Overview:
        Both sides in turn; the first update of each does not count.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_work(work, folder)
        sides = dict(
            ours=Side(sys.executable, 'update_ours.py', folder, threads),
            peer=Side(peer_python, 'update_peer.py', folder, threads)
        )
        loss, norm = zip(*(side.check() for side in sides.values()))
        if abs(loss[0] - loss[1]) > 1e-5 or abs(norm[0] / norm[1] - 1) > 1e-3:
            raise click.ClickException(f'{work.name}: of equal data the losses are {loss}, the gradient norms {norm}')
        told: Dict[str, List[Dict[str, Any]]] = {name: [] for name in sides}
        for number in range(work.rounds + 1):
            for name, side in sides.items():
                update = side.update()
                if number > 0:
                    told[name].append(update)
        for side in sides.values():
            side.end()
    wanted = work.groups * work.group_size * work.tokens
    for name, updates in told.items():
        if any(round(u['tokens']) != wanted for u in updates) or updates[-1]['updates'] != work.rounds + 1:
            raise click.ClickException(f'{work.name}: {name} did other work than {wanted} tokens an update: {updates}')
    seconds = {name: [u['seconds'] for u in updates] for name, updates in told.items()}
    memory = {name: told[name][-1]['memory'] - side.begun['memory'] for name, side in sides.items()}
    stages = {
        name: statistics.median(u[name] for u in told['ours'])
        for name in told['ours'][0] if name.startswith('seconds_')
    }
    return dict(
        work=work.name,
        **paired(seconds['ours'], seconds['peer']),
        threads=threads,
        versions={
            **sides['peer'].begun['versions'],
            **sides['ours'].begun['versions']
        },
        memory_ours=memory['ours'],
        memory_peer=memory['peer'],
        **stages,
    )


def _spread(seconds: List[float]) -> str:
    """Milliseconds: median, smallest and largest."""
    middle, low, high = (f'{value * 1e3:.0f}' for value in seconds)
    return f'{middle} ({low} to {high})'


def report(results: List[Dict[str, Any]], found: Dict[str, Any]) -> str:
    """
    Overview:
        docs/speed.md.
    """
    names = [work.name for work in WORKS]
    updates = sorted((r for r in results if r['work'] in names), key=lambda r: names.index(r['work']))
    whole = []
    for r in updates:
        rest = r['ours'] - r['seconds_core'] - r['seconds_looks']
        whole.append(
            [
                r['work'][len('update_'):], r['instructions'], r['threads'], r['rounds'], f"{r['ours'] * 1e3:.0f}",
                f"{r['peer'] * 1e3:.0f}", f"{r['ratio']:.3f} ({r['ratio_low']:.3f} to {r['ratio_high']:.3f})",
                f"{r['seconds_sampling'] * 1e3:.0f}", f"{r['seconds_updating'] * 1e3:.0f}",
                f"{r['seconds_looks'] / r['ours']:.1%}", f"{rest * 1e3:.0f} ({100 * rest / r['ours']:.0f} %)",
                f"{r['memory_ours'] / 2 ** 20:.0f} / {r['memory_peer'] / 2 ** 20:.0f}"
            ]
        )
    head = [
        'work', 'instructions', 'threads', 'rounds', 'ours, ms', 'TRL, ms', 'ratio (smallest to largest)', 'sampling',
        'learning', 'instruments', 'overhead', 'memory, MiB'
    ]
    grown = [[g['varied'], g['value'], *map(_spread, (g['sampling'], g['learning']))] for g in found['growth']]
    options = [[name, *map(_spread, parts)] for name, parts in found['options'].items()]
    generation = [[name, _spread(seconds)] for name, seconds in found['generation'].items()]
    peaks = [[rows, f'{bounded:.0f}', f'{free:.0f}'] for rows, (bounded, free) in found['memory'].items()]
    rates = found['rates']
    return TEXT.format(
        versions=', '.join(f'{name} {number}' for name, number in updates[0]['versions'].items()),
        machines=machines(updates),
        looks=LOOKS,
        updates=UPDATES,
        cores=os.cpu_count(),
        whole=tabulate(whole, head, tablefmt='pipe', disable_numparse=True),
        growth=tabulate(
            grown, ['what', 'size', 'sampling, ms', 'learning, ms'], tablefmt='pipe', disable_numparse=True
        ),
        options=tabulate(options, ['', 'sampling, ms', 'learning, ms'], tablefmt='pipe', disable_numparse=True),
        generation=tabulate(generation, ['', 'sampling, ms'], tablefmt='pipe', disable_numparse=True),
        memory=tabulate(peaks, ['', f"at most {found['budget']} tokens at a time", 'all at once'], tablefmt='pipe'),
        learning=rates['learning'],
        torch=rates['torch'],
        onednn=rates['oneDNN'],
        of_torch=rates['learning'] / rates['torch'],
        of_onednn=rates['learning'] / rates['oneDNN'],
        base=', '.join(f'{key} {value}' for key, value in found['base'].items()),
        threads=found['threads'],
        grown_on=machines([found['on']]),
    )


TEXT = """# Speed of whole updates compared with TRL

Generated by `make bench`.

Both sides have the same weights, prompts, sizes, sampling and optimizer:

- **Model**: a random Llama with 2 layers, hidden 256, intermediate 1024 and 4 heads, in float32.
- **Sampling**: temperature 1, no end of sequence, so that every completion has full length.
- **Learning**: AdamW, one step per update, no KL; 8 prompts per update.

The sides alternate update by update on one machine ({cores} cores), each in its own process and virtual environment.
The first update of each is not counted. First, both sides must compute the same loss and gradient norm on equal data,
and each update must sample the same number of tokens; otherwise the benchmark stops.

Values are medians. The ratio is computed for each pair of updates. An update is everything between two updates:
sampling, decoding, scoring, loss, optimizer and logging.
The instruments are on. They look closely at {looks} of the first {updates} updates of a run. Here they look at every
update, and {looks} % of that time is counted: column "instruments", as a share of the update.

Measured on:

{machines}

{versions}.

Column names: L is the length of the prompt, T that of the completion, G the group size, and V the vocabulary if it is
not 32. "Overhead" is the time outside the model, the arithmetic of sampling and loss, and the optimizer; parts of it
are within sampling and learning. "Memory" is the growth of the process's peak since before the first update, of this
project / of TRL.

{whole}

Reasons for the difference:

- Prompts are read once per group, in sampling and in learning, and their keys and values are never copied.
- Only completion positions reach the output matrix. TRL does so on a GPU; on a CPU it passes the prompt's positions
  through it as well, which weighs most with a large vocabulary. So these ratios say nothing about GPUs.
- Equal rows of a group are computed once, in sampling and in learning; the random models of this table have few.
- Nothing is padded outside the attention, and rows that have ended leave the batch.
- Values that the sampler reports are not computed again.
- Linear layers use oneDNN, except with AVX2 alone.

## Growth

This project alone: sampling, and forward and backward of learning, with {threads} thread. One size varies; the others
are: {base}. This section and the next two were measured on:

{grown_on}

{growth}

## Comparison with plain matrix products

At these sizes, learning reaches {learning:.0f} GFLOP/s. This counts the operations of the shared form: each prompt
once; multiplications and additions of all linear layers and of the attention, forward and backward. Whole updates with
sampling are compared in [Whole updates and their matrix products](limit.md). The products of
the linear layers alone, of the same shapes, reach {torch:.0f} GFLOP/s with torch's own library and {onednn:.0f} with
oneDNN. Learning is at {of_torch:.2f} of the former and {of_onednn:.2f} of the latter. The rest is memory traffic:
activations, their gradients and the rotary embedding read and write each number once for few operations.

## Options that were tried

At the same sizes and with one thread, alternating:

{options}

- `autocast` is an option. With it, weights, their updates, the output layer and the loss stay in float32. With bfloat16
  weights they do not, and a step of 1e-6 is lost. It pays off if the processor or GPU multiplies bfloat16, and is only
  measured if it does.
- With AVX2 alone, the first two rows are the same.
- torch.compile gains little, and it cannot call the products of oneDNN, so it is not an option.
- AdamW is torch's fused implementation.
- The number of threads is that of the environment variable `OMP_NUM_THREADS`.

The sampling methods of `transformers` read a prompt in every row; its continuous batching is made for GPUs:

{generation}

## Memory of learning

Peak MiB above the model, with and without `learn.micro_batch_tokens`:

{memory}
"""


def _measured(script: str) -> Dict[str, Any]:
    """What a script of this folder writes, with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, 'out.json')
        env = dict(os.environ, OMP_NUM_THREADS='1')
        subprocess.run([sys.executable, os.path.join(HERE, script), '--out', out], env=env, check=True)
        with open(out) as f:
            return json.load(f)


@click.command()
@click.option('--peer-python', required=True, type=click.Path(exists=True), help='Of an environment with TRL.')
@click.option('--threads', default='1,2', show_default=True, help='Comma-separated.')
@click.option('--only', default='', help='Names of works, or growth, comma-separated; all without it.')
def main(peer_python: str, threads: str, only: str) -> None:
    """Alternate the sides; print and write medians, spreads and ratios: benchmarks/results.json, docs/speed.md."""
    wanted = only.split(',') if only else [*(work.name for work in WORKS), 'growth']
    for work, number in itertools.product(WORKS, map(int, threads.split(','))):
        if work.name in wanted:
            r = alternate(work, peer_python, number)
            add([r])  # at once, so that none is lost
            click.echo(
                f"{r['work']}  {number} threads  ours {r['ours']:.3f} s  TRL {r['peer']:.3f} s  ratio {r['ratio']:.3f} "
                f"({r['ratio_low']:.3f} to {r['ratio_high']:.3f})  memory {r['memory_ours'] / 2 ** 20:.0f} to "
                f"{r['memory_peer'] / 2 ** 20:.0f} MiB  sampling {r['seconds_sampling']:.3f} s  updating "
                f"{r['seconds_updating']:.3f} s  instruments {r['seconds_looks'] / r['ours']:.1%}"
            )
    if 'growth' in wanted:
        with open(GROWTH, 'w') as f:
            json.dump(dict(**_measured('growth.py'), **_measured('choices.py'), on=measured_on()), f, indent=1)
            f.write('\n')
    if not os.path.exists(GROWTH):
        click.echo('docs/speed.md is not written before growth is measured, too')
        return
    with open(GROWTH) as f:
        page = report(add([]), json.load(f))
    with open(os.path.join(ROOT, 'docs', 'speed.md'), 'w') as f:
        f.write(page)


if __name__ == '__main__':
    main()
