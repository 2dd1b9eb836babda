"""
Faults injected for real: a run that is killed again and again, and every other fault of docs/guides/errors.md that a
command line can show. ``python tools/faults.py`` writes the table of what happened there, and ends with 1 if anything
else did.
"""
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import click
import torch

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
sys.path.insert(0, ROOT)
from ding_common import import_ding, read_json_lines  # noqa: E402

import_ding()
from ding.utils import deep_merge_dicts  # noqa: E402

from tests.same import same  # noqa: E402
from tests.shipped import load, write  # noqa: E402

SMALL = dict(
    exp_name='run',
    env=dict(stop_value=1e9, collector_env_num=16),
    policy=dict(
        group_size=4,
        learn=dict(batch_groups=2, learner=dict(hook=dict(save_ckpt_after_iter=2))),
        collect=dict(groups=4, collector=dict(table_freq=1000)),
        eval=dict(evaluator=dict(eval_freq=25)),
    ),
)
START = 60.  # seconds within which a run must have begun


def write_config(folder: str, changes: Dict[str, Any], name: str = 'think_answer_grpo') -> None:
    """A shipped config made small, with changes."""
    main, create = load(name, **deep_merge_dicts(SMALL, changes))
    if 'pretrained' in main.policy.model:
        main.policy.model.pop('config')
    write(os.path.join(folder, 'c.py'), (main, create))


def begin(folder: str, updates: int, limit: Optional[int] = None) -> subprocess.Popen:
    """``python -m ding_grpo`` as a process; with a limit no file may grow beyond so many bytes."""

    def before() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, '-m', 'ding_grpo', '-m', 'serial_onpolicy', '-c', 'c.py', '-s', '0', '--train-iter']
    with open(os.path.join(folder, 'out.txt'), 'w') as out:
        return subprocess.Popen(
            command + [str(updates)],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, PYTHONPATH=ROOT, OMP_NUM_THREADS='1', PYTHONUNBUFFERED='1'),
            preexec_fn=before
        )


def output(folder: str) -> str:
    with open(os.path.join(folder, 'out.txt'), errors='replace') as f:
        return f.read()


def updates_of(folder: str) -> int:
    return len(read_json_lines(os.path.join(folder, 'run', 'log', 'learner', 'metrics.jsonl')))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = START) -> bool:
    """Whether it came about before the process ended or the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.001)
    return False


class Kill(NamedTuple):
    """
    Overview:
        When the process was killed, after which update, and whether a checkpoint was being written.
    """
    when: str
    update: int
    half_written: bool


def killed(folder: str, updates: int, kills: int, seed: int, name: str) -> List[Kill]:
    """
    Overview:
        Kill a run of a shipped config ``kills`` times, in turn at a random moment of training, while a checkpoint is
        being written, and at a random moment since its start; then let it come to its end.
    """
    chosen, done = random.Random(seed), []
    write_config(folder, dict(policy=dict(learn=dict(resume_training=True))), name)
    ckpt = os.path.join(folder, 'run', 'ckpt')
    while len(done) < kills:
        since = time.time()
        process, when = begin(folder, updates), ('training', 'writing', 'any')[len(done) % 3]
        so_far = updates_of(folder)
        if when == 'any':
            wait_for(lambda: False, process, chosen.uniform(0, 9))
        elif wait_for(lambda: 'learning; Ctrl-C' in output(folder), process):
            wait_for(lambda: False, process, chosen.uniform(0, 2))
            if when == 'writing':
                wait_for(lambda: _half_written(ckpt, since), process)
        if process.poll() is not None:
            raise click.ClickException(f'the run ended by itself after {len(done)} kills:\n{output(folder)[-2000:]}')
        process.send_signal(signal.SIGKILL)
        process.wait()
        done.append(Kill(when, updates_of(folder), _half_written(ckpt, since)))
        click.echo(f'kill {len(done)}, {when}: {so_far} updates before, {done[-1].update} then')
    process = begin(folder, updates)
    if process.wait() != 0:
        raise click.ClickException(f'the resumed run failed:\n{output(folder)[-2000:]}')
    return done


def _half_written(ckpt: str, since: float) -> bool:
    """Whether there is a part of a checkpoint that was begun after a time."""
    for name in _names(ckpt):
        try:
            if name.endswith('.tmp') and os.path.getmtime(os.path.join(ckpt, name)) > since:
                return True
        except FileNotFoundError:  # it has just become whole
            pass
    return False


def _names(folder: str) -> List[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


class Fault(NamedTuple):
    """
    Overview:
        What is broken, how, and what must come of it.
    """
    name: str
    happened: str  # regular expression of the last lines
    changes: Dict[str, Any] = {}
    prepare: Callable[[str], None] = lambda folder: None
    code: int = 1
    limit: Optional[int] = None
    signal: Optional[int] = None
    first: int = 0  # updates of a run before, which this one resumes
    updates: int = 6


def _on_newest(do: Callable[[str], None], how_many: int = 1) -> Callable[[str], None]:

    def prepare(folder: str) -> None:
        ckpt = os.path.join(folder, 'run', 'ckpt')
        names = sorted(_names(ckpt), key=lambda n: int((re.findall(r'\d+', n) or [-1])[0]), reverse=True)
        for name in names[:how_many]:
            do(os.path.join(ckpt, name))

    return prepare


def _cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def _flip(path: str) -> None:
    with open(path, 'r+b') as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 16]))


def _small_disk(folder: str) -> None:
    """Room for two checkpoints; only the superuser may make such a disk."""
    run = os.path.join(folder, 'run')
    os.mkdir(run)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=30m', 'none', run], check=True)


def _reseed(folder: str) -> None:
    for name in _names(os.path.join(folder, 'run', 'ckpt')):
        path = os.path.join(folder, 'run', 'ckpt', name)
        state = torch.load(path, weights_only=True)
        state['run']['seed'] = 7
        torch.save(state, path)


class _Code:

    def __reduce__(self) -> Tuple:
        return os.mkdir, ('executed', )


def _code(path: str) -> None:
    torch.save(dict(model=_Code()), path)


def _model(spoil: Callable[[str], None] = lambda folder: None) -> Callable[[str], None]:
    """A model folder, spoiled."""

    def prepare(folder: str) -> None:
        from ding_grpo.model import CausalLM
        from dizoo_llm.tasks.think_answer import ThinkAnswerTask
        from dizoo_llm.text.tokenizer import build_word_tokenizer
        torch.manual_seed(0)
        path = os.path.join(folder, 'model')
        CausalLM(
            config=dict(
                model_type='llama',
                vocab_size=32,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2
            )
        ).save_pretrained(path, build_word_tokenizer(ThinkAnswerTask.words))
        spoil(path)

    return prepare


def _nan_weight(path: str) -> None:
    from safetensors.torch import load_file, save_file
    file = os.path.join(path, 'model.safetensors')
    weights = load_file(file)
    weights['model.norm.weight'][3] = float('nan')
    save_file(weights, file, dict(format='pt'))


def _link_out(path: str) -> None:
    file = os.path.join(path, 'model.safetensors')
    shutil.move(file, os.path.join(path, '..', 'elsewhere.safetensors'))
    os.symlink(os.path.join('..', 'elsewhere.safetensors'), file)


def _file(content: Any) -> Callable[[str], None]:
    """A file of problems."""

    def prepare(folder: str) -> None:
        data = content if isinstance(content, bytes) else content.encode()
        with open(os.path.join(folder, 'a.jsonl'), 'wb') as f:
            f.write(data)

    return prepare


def _config(text: str) -> Callable[[str], None]:

    def prepare(folder: str) -> None:
        with open(os.path.join(folder, 'c.py'), 'w') as f:
            f.write(text)

    return prepare


def _python(text: str) -> Callable[[str], None]:

    def prepare(folder: str) -> None:
        with open(os.path.join(folder, 'my_task.py'), 'w') as f:
            f.write(text)

    return prepare


RESUME = dict(policy=dict(learn=dict(resume_training=True)))
FILE = dict(
    env=dict(
        task=dict(type='file', path='a.jsonl'),
        tokenizer=dict(chars='abcdefghij '),
        evaluator_env_num=1,
        n_evaluator_episode=1
    )
)
MODEL = dict(env=dict(tokenizer=dict(pretrained='model')), policy=dict(model=dict(pretrained='model')))
GOOD = '{"question": "a", "answer": "b"}\n'
SCORER = '''
def problems():
    return [dict(prompt='2 + 2 =', answer='4')]


def score(problem, completion):
    return float('nan')
'''
LIMIT = 200_000  # bytes; a checkpoint here has 12 MB

FAULTS = [
    Fault('SIGTERM', 'SIGTERM: saving after update', code=143, signal=signal.SIGTERM, updates=10 ** 6),
    Fault('Ctrl-C', 'SIGINT: saving after update', code=130, signal=signal.SIGINT, updates=10 ** 6),
    Fault(
        'no room for a checkpoint',
        r'could not be written \(.*\); the last good one is run/ckpt/iteration_4',
        RESUME,
        limit=LIMIT,
        first=4
    ),
    Fault(
        'a full disk',
        r'could not be written \(No space left on device\); the last good one is run/ckpt/iteration_2',
        RESUME,
        _small_disk,
        updates=50
    ),
    Fault(
        'newest checkpoint cut off',
        'iteration_4.pth.tar is damaged.*resuming from run/ckpt/iteration_2',
        RESUME,
        _on_newest(_cut),
        code=0,
        first=4
    ),
    Fault(
        'one bit of it flipped',
        'iteration_4.pth.tar is damaged.*checksum.*resuming from run/ckpt/iteration_2',
        RESUME,
        _on_newest(_flip),
        code=0,
        first=4
    ),
    Fault('all checkpoints damaged', 'damaged.* no good earlier checkpoint', RESUME, _on_newest(_cut, 9), first=4),
    Fault(
        'code in place of checkpoints',
        'contains more than tensors .* no good earlier checkpoint',
        RESUME,
        _on_newest(_code, 9),
        first=4
    ),
    Fault('resumed with another seed', 'seed = 0: the run of .* has seed 7', dict(RESUME), _reseed, first=2),
    Fault(
        'weights that are not finite', 'parameter .*norm.weight: 1 of 32 numbers are NaN or infinite', MODEL,
        _model(_nan_weight)
    ),
    Fault('a learning rate that explodes', 'NaN or infinite', dict(policy=dict(learn=dict(learning_rate=1e30)))),
    Fault(
        'ratios that run away, with max_ratio',
        'models: run/model',
        dict(policy=dict(learn=dict(max_ratio=1.2, epoch_per_collect=50, learning_rate=1e-2))),
        code=0
    ),
    Fault(
        'a scorer that gives NaN', 'right = nan|= nan, must be a finite number',
        dict(
            env=dict(
                task=dict(type='file', path='my_task.py'),
                tokenizer=dict(chars='0123456789+= '),
                evaluator_env_num=1,
                n_evaluator_episode=1
            )
        ), _python(SCORER)
    ),
    Fault('a broken line', "a.jsonl': line 2 is not valid JSON", FILE, _file(GOOD + '{"question"')),
    Fault('another encoding', 'save the file as UTF-8', FILE, _file(GOOD.encode('utf-16'))),
    Fault('a missing field', 'line 1 has no column for the answer', FILE, _file('{"question": "a"}')),
    Fault(
        'a million characters', 'the longest has 1000000', FILE,
        _file('{"question": "%s", "answer": "b"}' % ('a' * 10 ** 6))
    ),
    Fault(
        'one question with two answers',
        'repeat a question with a different answer',
        FILE,
        _file(GOOD + '{"question": "a", "answer": "c"}\n'),
        code=0
    ),
    Fault('an empty file', 'the task has no problem', FILE, _file('')),
    Fault('<eos> in a prompt', 'it has no token for', FILE, _file('{"question": "a<eos>", "answer": "b"}')),
    Fault(
        'a model folder without tokenizer', 'contains no tokenizer', MODEL,
        _model(lambda path: [os.remove(os.path.join(path, n)) for n in _names(path) if 'token' in n])
    ),
    Fault(
        'without weights', 'model.pretrained = .*safetensors', MODEL,
        _model(lambda path: os.remove(os.path.join(path, 'model.safetensors')))
    ),
    Fault('with a link out of it', 'is a link to .*, outside the folder', MODEL, _model(_link_out)),
    Fault('a file without main_config', 'must define main_config', prepare=_config('x = 1\n')),
    Fault('a config that does not compile', 'SyntaxError', prepare=_config('main_config = (\n')),
]


def inject(fault: Fault) -> Tuple[bool, str]:
    """
    Overview:
        Run with a fault.
    Returns:
        - as_told (:obj:`bool`): Whether what must come of it did, the exit code too, without a traceback, and \
            everything that was there before is as it was.
        - happened (:obj:`str`): The lines that tell it.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_config(folder, fault.changes)
        if fault.first:
            write_config(folder, {})
            begin(folder, fault.first).wait()
            write_config(folder, fault.changes)
        fault.prepare(folder)
        before = _contents(folder)
        process = begin(folder, fault.updates, fault.limit)
        if fault.signal is not None:
            wait_for(lambda: updates_of(folder) >= 3, process)
            process.send_signal(fault.signal)
        code, out = process.wait(), output(folder)
        lines = [line for line in out.splitlines() if line.strip()]
        flat = ' '.join(lines)
        found = re.search(fault.happened, flat)
        kept = all(_contents(folder).get(path) == digest for path, digest in before.items()) or fault.code == 0
        whole = not os.path.exists(os.path.join(folder, 'executed')) and 'Traceback' not in out
        if fault.name.startswith('ratios'):
            steps = [
                r['optimizer_steps']
                for r in read_json_lines(os.path.join(folder, 'run', 'log', 'learner', 'metrics.jsonl'))
            ]
            whole = whole and max(steps) < 2 * 50
            lines.append(f'{min(steps):.0f} to {max(steps):.0f} of 100 steps of the optimizer an update')
        of_one_line = (line for line in reversed(lines) if re.search(fault.happened, line))
        shown = next(of_one_line, found[0] if found is not None else '')
        if fault.name.startswith('ratios'):
            shown = lines[-1]
        as_told = found is not None and code == fault.code and kept and whole
        if not as_told:
            shown = f'NOT AS TOLD: code {code}, kept {kept}: {flat[-1500:]}'
        if os.path.ismount(os.path.join(folder, 'run')):
            subprocess.run(['umount', os.path.join(folder, 'run')], check=True)
        return as_told, shown.replace(folder + os.sep, '').replace(ROOT + os.sep, '')


def _contents(folder: str) -> Dict[str, str]:
    """Digest of every file that no run may write over: inputs, configs of the user, checkpoints."""
    found = {}
    for where, _, names in os.walk(folder):
        if 'log' in os.path.relpath(where, folder).split(os.sep):
            continue
        for name in names:
            path = os.path.join(where, name)
            # by any run; it removes the result of its former end when it goes on
            written = name in ('out.txt', '.lock', 'result.pkl') or name.endswith('total_config.py')
            if not written and os.path.isfile(path):
                with open(path, 'rb') as f:
                    found[path] = hashlib.sha256(f.read()).hexdigest()
    return found


TEXT = """# Faults injected for real

This page is generated by `make test-faults`.

A run of think_answer had {updates} updates, with a checkpoint every second update.
It was killed by SIGKILL {kills} times, {writing} of them while a checkpoint was being written.
The kills came after the updates {at}.
Each time the run was resumed with `policy.learn.resume_training=True`.
Compared at its end with a run that was never killed: {verdict}.

The table lists every other fault, with its exit code and last line.

| fault | exit code | result |
|---|---|---|
{rows}
"""


@click.command()
@click.option('--kills', default=24, show_default=True)
@click.option('--updates', default=600, show_default=True)
@click.option('--seed', default=0, show_default=True)
@click.option('--config', default=None, help='Name of a shipped config: only its run is killed, and nothing written.')
@click.option('--write/--no-write', default=False, help='Whether to write docs/results/faults.md.')
def main(kills: int, updates: int, seed: int, config: Optional[str], write: bool) -> None:
    """Kill, damage, fill and feed; say what came of it."""
    name = config or 'think_answer_grpo'
    with tempfile.TemporaryDirectory() as folder:
        whole, run = os.path.join(folder, 'whole'), os.path.join(folder, 'killed')
        for path in (whole, run):
            os.mkdir(path)
        write_config(whole, {}, name)
        if begin(whole, updates).wait() != 0:
            raise click.ClickException(output(whole)[-2000:])
        done = killed(run, updates, kills, seed, name)
        a, b = (
            torch.load(os.path.join(path, 'run', 'ckpt', f'iteration_{updates}.pth.tar'), weights_only=True)
            for path in (whole, run)
        )
        same(a, b)
        if updates_of(run) != updates:
            raise click.ClickException(f'{updates_of(run)} lines of metrics, not {updates}')
    verdict = 'weights, optimizer, random numbers and counters are bit-identical'
    click.echo(f'{name}, {kills} kills, {sum(kill.half_written for kill in done)} while writing: {verdict}')
    if config is not None:
        return
    rows, failed = [], 0
    for fault in FAULTS:
        if fault.prepare is _small_disk and os.geteuid() != 0:
            click.echo(f'--  {fault.name}: only the superuser can make one')
            continue
        as_told, happened = inject(fault)
        failed += not as_told
        click.echo(f"{'ok ' if as_told else 'BAD'} {fault.name}: {happened}")
        shown = happened.replace('|', '\\|')
        rows.append(f'| {fault.name} | {fault.code} | `{shown[:300]}` |')
    if failed:
        raise click.ClickException(f'{failed} of {len(FAULTS)} faults ended otherwise')
    if write:
        told = TEXT.format(
            updates=updates,
            kills=kills,
            writing=sum(kill.half_written for kill in done),
            at=', '.join(str(kill.update) for kill in done),
            verdict=verdict,
            rows='\n'.join(rows)
        )
        with open(os.path.join(ROOT, 'docs', 'results', 'faults.md'), 'w') as f:
            f.write(told)


if __name__ == '__main__':
    main()
