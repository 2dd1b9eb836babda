"""
Whole updates beside TRL's, on one machine, with the same weights, prompts, sizes, sampling and optimizer. The sides
alternate update by update. Writes benchmarks/results/results.json and docs/results/speed.md.
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

import click

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.beside_trl.update_page import report
from benchmarks.shared.hardware import measured_on
from benchmarks.shared.paths import RECORDS, ROOT, command
from benchmarks.shared.records import add, paired
from ding_grpo.instruments.watch import EACH_BEFORE, EVERY
from ding_grpo.model import CausalLM
from ding_grpo.model.autocast import multiplies_bfloat16
from dizoo_llm.text.tokenizer import build_word_tokenizer

CHOICES = os.path.join(RECORDS, 'choices.json')  # what choices.py has found
LLM = 'smollm2_grpo'
SIZES = dict(groups=16, group_size=8)  # of its updates; with the config's own, one of TRL's takes ten minutes
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
    bf16: bool = False  # on both sides, by autocast

    @property
    def name(self) -> str:
        more = (f'_V{self.vocabulary}' if self.vocabulary != 32 else '') + ('_BF16' if self.bf16 else '')
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
PEER_ROWS = 8  # that TRL learns from at a time by default
HALF = [work._replace(bf16=True) for work in WORKS[:6]]  # where the processor multiplies bfloat16


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

    def __init__(self, python: str, program: str, folder: str, threads: int) -> None:
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), GOMP_SPINCOUNT=SPIN, HF_HUB_OFFLINE='1')
        self._log = open(os.path.join(folder, program + '.log'), 'w')
        self._process = subprocess.Popen(
            command(python, f'beside_trl.{program}', folder, str(threads)),
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True
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


def in_parts(folder: str, rows: int) -> str:
    """A folder with the same work, from whose rows TRL learns so many at a time."""
    parts = os.path.join(folder, 'parts')
    os.makedirs(parts)
    os.symlink(os.path.join(folder, 'model'), os.path.join(parts, 'model'))
    with open(os.path.join(folder, 'work.json')) as f, open(os.path.join(parts, 'work.json'), 'w') as of_parts:
        json.dump(dict(json.load(f), rows=rows), of_parts)
    return parts


def alternate(work: Work, peer_python: str, threads: int) -> Dict[str, Any]:
    """
    Overview:
        All sides in turn; the first update of each does not count. TRL learns from all rows at once, and in another \
        process from ``PEER_ROWS`` at a time; the faster of the two is compared.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_work(work, folder)
        sides = dict(
            ours=Side(sys.executable, 'update_ours', folder, threads),
            peer=Side(peer_python, 'update_peer', folder, threads),
            parts=Side(peer_python, 'update_peer', in_parts(folder, PEER_ROWS), threads)
        )
        loss, norm = zip(*(sides[name].check() for name in ('ours', 'peer')))  # in parts TRL has the same loss
        of_loss, of_norm = (1e-3, 3e-2) if work.bf16 else (1e-5, 1e-3)
        if abs(loss[0] - loss[1]) > of_loss or abs(norm[0] / norm[1] - 1) > of_norm:
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
    peer = min('peer', 'parts', key=lambda name: statistics.median(seconds[name]))
    memory = {name: told[name][-1]['memory'] - side.begun['memory'] for name, side in sides.items()}
    stages = {
        name: statistics.median(u[name] for u in told['ours'])
        for name in told['ours'][0] if name.startswith('seconds_')
    }
    return dict(
        work=work.name,
        **paired(seconds['ours'], seconds[peer]),
        peer_rows=PEER_ROWS if peer == 'parts' else work.groups * work.group_size,
        threads=threads,
        versions={
            **sides['peer'].begun['versions'],
            **sides['ours'].begun['versions']
        },
        memory_ours=memory['ours'],
        memory_peer=memory[peer],
        **stages,
    )


def _measured_choices() -> Dict[str, Any]:
    """What choices.py writes, with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, 'out.json')
        env = dict(os.environ, OMP_NUM_THREADS='1')
        words = command(sys.executable, 'beside_trl.choices', '--out', out)
        subprocess.run(words, cwd=ROOT, env=env, check=True)
        with open(out) as f:
            return json.load(f)


@click.command()
@click.option('--peer-python', required=True, type=click.Path(exists=True), help='Of an environment with TRL.')
@click.option('--threads', default='1,2', show_default=True, help='Comma-separated.')
@click.option('--only', default='', help='Names of works, or choices, comma-separated; all without it.')
def main(peer_python: str, threads: str, only: str) -> None:
    """Alternate the sides; print medians, spreads and ratios; write the record and docs/results/speed.md."""
    names = [work.name for work in WORKS + HALF]
    wanted = only.split(',') if only else [*names, 'choices']
    for name in wanted:
        if name not in (*names, 'choices'):
            raise click.BadParameter(f"{name!r}: must be of {', '.join(names)}, choices", param_hint='--only')
    works = WORKS + (HALF if multiplies_bfloat16('cpu') else [])
    for work, number in itertools.product(works, map(int, threads.split(','))):
        if work.name in wanted:
            r = alternate(work, peer_python, number)
            add([r])  # at once, so that none is lost
            click.echo(
                f"{r['work']}  {number} threads  ours {r['ours']:.3f} s  TRL {r['peer']:.3f} s, "
                f"{r['peer_rows']} rows at a time  ratio {r['ratio']:.3f} "
                f"({r['ratio_low']:.3f} to {r['ratio_high']:.3f})  memory {r['memory_ours'] / 2 ** 20:.0f} to "
                f"{r['memory_peer'] / 2 ** 20:.0f} MiB  sampling {r['seconds_sampling']:.3f} s  updating "
                f"{r['seconds_updating']:.3f} s  instruments {r['seconds_looks'] / r['ours']:.1%}"
            )
    if 'choices' in wanted:
        with open(CHOICES, 'w') as f:
            json.dump(dict(_measured_choices(), on=measured_on()), f, indent=1)
            f.write('\n')
    if not os.path.exists(CHOICES):
        click.echo('docs/results/speed.md is not written before choices are measured, too')
        return
    with open(CHOICES) as f:
        page = report(add([]), json.load(f), names, LOOKS, UPDATES)
    with open(os.path.join(ROOT, 'docs', 'results', 'speed.md'), 'w') as f:
        f.write(page)


if __name__ == '__main__':
    main()
