"""
think_answer beside TRL: seed by seed each side learns until all four questions are solved, greedily: right, in the
full format, and ended by the end-of-sequence token. Both have the shipped config's model, sizes, rewards, learning
rate and clipping; TRL has no entropy bonus, so this project is also run without. Writes benchmarks/results.json and
docs/solve.md.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))
from hardware import processor_with_rates  # noqa: E402
from runs import CONSTANT, ROOT, load_config, middle, run  # noqa: E402

import click  # noqa: E402
import torch  # noqa: E402
from ding.utils import set_pkg_seed  # noqa: E402
from protocol import versions  # noqa: E402
from results import add  # noqa: E402

from ding_grpo.model import CausalLM  # noqa: E402
from dizoo_llm.tasks.think_answer import ThinkAnswerTask  # noqa: E402
from dizoo_llm.tokenizer import build_word_tokenizer  # noqa: E402

CONFIG = 'think_answer_grpo'
OURS, PLAIN, PEER = 'this project', 'this project, no entropy bonus', 'TRL'


class Solved(NamedTuple):
    """
    Overview:
        Update and training time, evaluations included, of the first evaluation that was all right; None if there is
        none.
    """
    updates: Optional[int]
    seconds: Optional[float]
    versions: Dict[str, str]


def make_work(seed: int, updates: int, folder: str) -> None:
    """
    Overview:
        Write model, tokenizer, problems and sizes of the shipped config.
    """
    config, task = load_config(CONFIG)[0], ThinkAnswerTask()
    policy = config.policy
    set_pkg_seed(seed, use_cuda=False)
    CausalLM(config=policy.model.config
             ).save_pretrained(os.path.join(folder, 'model'), build_word_tokenizer(task.words))
    problems = [task.problem(i) for i in range(len(task))]
    work = dict(
        problems=[dict(prompt=p.prompt, answer=p.answer) for p in problems],
        updates=updates,
        rows=policy.collect.n_sample * policy.group_size,
        steps=policy.collect.n_sample // policy.learn.batch_size,
        group_size=policy.group_size,
        tokens=config.env.max_new_tokens,
        freq=policy.eval.evaluator.eval_freq,
        **{key: policy.learn[key]
           for key in ('learning_rate', 'clip_ratio')},
    )
    with open(os.path.join(folder, 'work.json'), 'w') as f:
        json.dump(work, f)


def peer(python: str, seed: int, updates: int) -> Solved:
    """TRL's run, in a process and environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        make_work(seed, updates, folder)
        env = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()), HF_HUB_OFFLINE='1')
        done = subprocess.run(
            [python, os.path.join(HERE, 'solve_peer.py'), folder,
             str(seed)], env=env, capture_output=True, text=True
        )
        if done.returncode:
            raise click.ClickException(f'TRL ended with {done.returncode}:\n{done.stderr[-3000:]}')
        return Solved(**json.loads(done.stdout))


def ours(seed: int, updates: int, **learn: Any) -> Solved:
    """This project's run."""
    learn['lr_scheduler'] = CONSTANT  # as in TRL's run
    r = run(CONFIG, seed, os.path.join('solve', f'seed {seed}'), 1, learn=learn, max_train_iter=updates)
    return Solved(r.solved, r.seconds, versions())


def report(sides: Dict[str, List[Solved]], seeds: List[str], updates: int) -> str:
    """
    Overview:
        docs/solve.md.
    """
    head = ['', 'solved', 'updates', 'seconds', 's an update', *(f'seed {seed}' for seed in seeds)]
    lines = ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    for name, runs in sides.items():
        done = [r for r in runs if r.updates]
        cells = [name, f'{len(done)} of {len(runs)}']
        cells += [
            middle([r.updates for r in done], '.0f'),
            middle([r.seconds for r in done], '.1f'), f'{statistics.median(r.seconds / r.updates for r in done):.3f}'
        ] if done else ['never'] * 3
        cells += [f'{r.updates}, {r.seconds:.1f} s' if r.updates else 'never' for r in runs]
        lines.append('| ' + ' | '.join(cells) + ' |')
    policy = load_config(CONFIG)[0].policy
    return TEXT.format(
        updates=updates,
        rows=policy.collect.n_sample * policy.group_size,
        steps=policy.collect.n_sample // policy.learn.batch_size,
        machine=f'{processor_with_rates()}; {torch.get_num_threads()} threads',
        table='\n'.join(lines),
        versions=', '.join(map(' '.join,
                               _versions(sides).items()))
    )


def _versions(sides: Dict[str, List[Solved]]) -> Dict[str, str]:
    return {**sides[PEER][0].versions, **sides[OURS][0].versions}


def result(sides: Dict[str, List[Solved]]) -> Dict[str, Any]:
    """
    Overview:
        The entry of benchmarks/results.json: medians over the seeds on which both sides solved it.
    """
    pairs = [(a.seconds, b.seconds) for a, b in zip(sides[OURS], sides[PEER]) if a.updates and b.updates]
    return dict(
        work='solve_think_answer',
        ratio=statistics.median(a / b for a, b in pairs),
        ours=statistics.median(a for a, _ in pairs),
        peer=statistics.median(b for _, b in pairs),
        unit='s',
        threads=torch.get_num_threads(),
        versions=_versions(sides),
        solved_ours=sum(r.updates is not None for r in sides[OURS]),
        solved_peer=sum(r.updates is not None for r in sides[PEER]),
        seeds=len(sides[OURS]),
    )


TEXT = """# Time to solve think_answer compared with TRL

Generated by `make bench`.

Both sides use the model, prompts, rewards, group size, rows per update and clipping of
`config/think_answer_grpo_config.py`, its first learning rate in every update, and advantages without the standard
deviation. An update is {rows} completions and {steps} optimizer steps. Greedy evaluation on all four questions runs
every 10 updates, for at most {updates} updates. A question is solved when the completion is right, in the full format,
and ended by the end-of-sequence token.
Seconds are training time including evaluation, without set-up. The sides alternate, seed by seed. {machine};
{versions}.

The shipped config has an entropy bonus, so that a solved policy stays solved ([think_answer.md](think_answer.md)). TRL
has none. Without the bonus, this project runs the same algorithm as TRL.

Medians over the solved seeds, smallest and largest in parentheses:

{table}
"""


@click.command()
@click.option('--peer-python', required=True, type=click.Path(exists=True), help='Of an environment with TRL.')
@click.option('--seeds', default='0,1,2,3,4', show_default=True, help='Comma-separated.')
@click.option('--updates', default=400, show_default=True, help='At most, of each run.')
@click.option('--threads', default=2, show_default=True)
def main(peer_python: str, seeds: str, updates: int, threads: int) -> None:
    """Learn on several seeds, on both sides in turn; print and write what it took."""
    os.chdir(ROOT)
    torch.set_num_threads(threads)
    sides: Dict[str, List[Solved]] = {OURS: [], PLAIN: [], PEER: []}
    for seed in map(int, seeds.split(',')):
        sides[OURS].append(ours(seed, updates))
        sides[PLAIN].append(ours(seed, updates, entropy_weight=0.0))
        sides[PEER].append(peer(peer_python, seed, updates))
    add([result(sides)])
    text = report(sides, seeds.split(','), updates)
    with open(os.path.join('docs', 'solve.md'), 'w') as f:
        f.write(text)
    click.echo(text)


if __name__ == '__main__':
    main()
