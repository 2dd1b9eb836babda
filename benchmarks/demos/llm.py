"""
SmolLM2-135M-Instruct learns sums and differences by GRPO: with all weights, with LoRA, and with a KL to the start; and,
beside it, by supervised training on right answers.
What it learns, and what it costs elsewhere. Finished runs are kept in runs/demo_llm and not repeated; those of the
page, with the machine that each ran on, are in benchmarks/results/demo_llm.json.
"""
import itertools
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import click
import numpy as np
import torch
from tabulate import tabulate
from transformers import AutoModelForCausalLM, PreTrainedModel

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.demos.elsewhere import PROBLEMS, Answers, answers_of, config, costs, environment, kl_of_right_answers
from benchmarks.demos.llm_page import draw, report, runs_table
from benchmarks.shared.hardware import machine
from benchmarks.shared.paths import RECORDS, ROOT
from benchmarks.shared.runs import kept, load_config
from ding_common import read_json_lines
from ding_common.hub.language_model import build_causal_lm
from ding_grpo.model.autocast import Autocast
from dizoo_llm.interpolate import SHARE, interpolate
from dizoo_llm.sft import evaluate

OUT = os.path.join('runs', 'demo_llm')
RECORD, PAGES = os.path.join(RECORDS, 'demo_llm.json'), os.path.join('docs', 'results')
MODEL = 'smollm2-135m-instruct'
Start = Callable[[], PreTrainedModel]
StartsAnswers = Callable[[], Answers]


class Way(NamedTuple):
    """
    Overview:
        A way to train: its label, what it changes in the shipped config, and the program.
    """
    label: str
    changes: str
    program: Tuple[str, ...] = ('-m', 'ding_grpo', '-m', 'serial_onpolicy')


WAYS = dict(
    full=Way('all weights', ''),
    lora=Way(
        'LoRA, rank 16', "main_config.policy.model.update(lora=dict(r=16, lora_alpha=32, target_modules='all-linear'), "
        'save_merged=True)\nmain_config.policy.learn.learning_rate = 3e-4\nmain_config.policy.run.num_updates = 300'
    ),
    # k3's gradient grows with exp(ref - new), which was 160,000 for one token after a few steps. Equal groups are kept:
    # most groups soon are equal, and without them the KL would hardly act.
    kl=Way(
        'all weights, `kl.beta=0.3`, k2, equal groups kept',
        "main_config.policy.learn.update(kl=dict(beta=0.3, type='k2'), drop_equal_groups=False)"
    ),
    sft=Way('supervised, right answers', '', ('-m', 'benchmarks.demos.supervised')),
)
CONFIG = '''from ding_common import read_config_file

main_config, create_config = read_config_file({config!r})
main_config.exp_name = {folder!r}
{changes}
'''


def folder(way: str, seed: int) -> str:
    return os.path.join(OUT, f'{way} seed {seed}')


def train(way: str, seed: int, meanwhile: Callable[[], Any]) -> Dict[str, float]:
    """
    Overview:
        Train in a process of its own.
    Arguments:
        - meanwhile (:obj:`Callable`): What this process does while the other starts.
    Returns:
        - result (:obj:`Dict[str, float]`): The updates, and the seconds and the memory that they took.
    """
    path = os.path.join(OUT, f'{way}_{seed}_config.py')
    with open(path, 'w') as f:
        f.write(
            CONFIG.format(
                config=os.path.join(ROOT, 'config', 'smollm2_grpo_config.py'),
                folder=folder(way, seed),
                changes=WAYS[way].changes
            )
        )
    command = [sys.executable, *WAYS[way].program, '-c', path, '-s', str(seed)]
    process = subprocess.Popen(command)
    try:
        meanwhile()
    except BaseException:
        process.terminate()
        raise
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise click.ClickException(f'{way} seed {seed} failed')
    gibibytes = usage.ru_maxrss / 2 ** 20
    if way == 'sft':
        last = evaluations(way, seed)[-1]
        steps, seconds = last['step'], last['seconds']
        return dict(updates=steps, seconds=seconds, update=seconds / steps, gibibytes=gibibytes)
    metrics = read_json_lines(os.path.join(folder(way, seed), 'log', 'learner', 'metrics.jsonl'))
    each = [sum(m[f'seconds_{part}'] for part in ('sampling', 'scoring', 'updating')) for m in metrics]
    seconds, update = sum(each), float(np.median(each))
    return dict(updates=len(each), seconds=seconds, update=update, gibibytes=gibibytes)


def evaluations(way: str, seed: int) -> List[Dict[str, Any]]:
    parts = () if way == 'sft' else ('log', 'evaluator')
    return read_json_lines(os.path.join(folder(way, seed), *parts, 'evaluations.jsonl'))


def curve(way: str, seed: int) -> List[Tuple[float, float]]:
    """(seconds of training, held-out accuracy) of each evaluation."""
    return [(r['seconds'], r['eval_episode_return']) for r in evaluations(way, seed)]


def run_on() -> str:
    """The machine of a run, and the type in which its layers multiply there."""
    dtype = Autocast(config().policy.model.autocast).dtype_on('cpu') or torch.float32
    return f"{machine()}, {str(dtype).split('.')[1]}"


def recorded(settings: Dict[str, str]) -> Dict[str, Any]:
    """
    Overview:
        The results that the page has, without costs elsewhere that were measured on another number of problems.
    Arguments:
        - settings (:obj:`Dict[str, str]`): By way; runs of other settings are left out.
    """
    with open(RECORD) as f:
        results = json.load(f)
    results['runs'] = [r for r in results['runs'] if r['settings'] == settings[r['way']]]
    if results['start'].get('problems') != PROBLEMS:
        results['start'] = {}
    for r in results['runs']:
        if r['trained'].get('problems') != PROBLEMS:
            r.update({part: dict(right=r[part]['right']) for part in ('trained', 'interpolated')})
    return results


def of_run(way: str, seed: int, meanwhile: Callable[[], Any]) -> Dict[str, Any]:
    """
    Overview:
        Train, and measure everything but what it costs elsewhere; see ``train``.
    """
    shutil.rmtree(folder(way, seed), ignore_errors=True)
    result = dict(way=way, seed=seed, machine=run_on(), **train(way, seed, meanwhile), curve=curve(way, seed))
    shutil.rmtree(os.path.join(folder(way, seed), 'ckpt'), ignore_errors=True)  # 3 GB, and the run has ended
    log = evaluations(way, seed)
    rows = zip(*(log[i].get('completions', []) for i in (0, -1)))
    result['samples'] = [
        (a['prompt'].split('user: ')[-1], a['completion'], b['completion']) for a, b in list(rows)[:10]
    ]
    return result


def moved(way: str, seed: int, start: PreTrainedModel, share: float) -> PreTrainedModel:
    """The trained model as plain ``transformers`` loads it, with a share of the start."""
    last = () if way == 'sft' else ('last', )
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder(way, seed), 'model', *last))
    return interpolate(model, start, share)


def accuracy(way: str, seed: int, start: PreTrainedModel, share: float) -> Dict[str, float]:
    """
    Overview:
        Held-out accuracy by plain ``transformers``. Without a share of the start it must be that of the evaluator.
    """
    right = evaluate(moved(way, seed, start, share), environment(), config().env.n_evaluator_episode)
    last = curve(way, seed)[-1][1]
    if share == 0 and right != last:
        raise click.ClickException(f'{way} seed {seed}: plain transformers gives {right}, the evaluator {last}')
    return dict(right=right)


def measure(way: str, seed: int, settings: str, start: Start, answers: Optional[StartsAnswers]) -> Dict[str, Any]:
    """
    Overview:
        A run with its accuracy and, given a function of the start's answers, with what it costs elsewhere. What was
        computed with these settings is read from ``runs/demo_llm``.
    """
    name, settings = folder(way, seed), f'{settings} {torch.get_num_threads()} threads'
    result = kept(f'{name}.json', settings, lambda: of_run(way, seed, start))
    for part, share in (('trained', 0), ('interpolated', SHARE)):
        result[part] = kept(f'{name} {part}.json', settings, lambda: accuracy(way, seed, start(), share))
        if answers is not None:
            elsewhere = kept(
                f'{name} {part} costs.json', f'{settings}, {PROBLEMS} problems',
                lambda: costs(moved(way, seed, start(), share), start(), answers())
            )
            result[part].update(elsewhere)
    return result


def write_results(results: Dict[str, Any], path: str, record: bool) -> None:
    """
    Overview:
        Page and picture, and the record of the page.
    """
    draw(results, f'{os.path.splitext(path)[0]}.png')
    with open(path, 'w') as f:
        f.write(report(results))
    if record:
        with open(RECORD, 'w') as f:
            json.dump(results, f, indent=1)
            f.write('\n')


@click.command()
@click.option('--seeds', default='0', show_default=True, help='Comma-separated.')
@click.option('--ways', default='full', show_default=True, help=f'Comma-separated: {", ".join(WAYS)}.')
@click.option('--elsewhere', default='', help='Comma-separated seeds for which to measure what it costs elsewhere.')
@click.option('--write', is_flag=True, help='Write docs/results/demo_llm.md and .png; otherwise runs/demo_llm/.')
@click.option('--add', is_flag=True, help='Keep the runs that docs/results/demo_llm.md has, and make the others.')
def main(seeds: str, ways: str, elsewhere: str, write: bool, add: bool) -> None:
    """Train SmolLM2 in several ways on several seeds, one after the other."""
    os.chdir(ROOT)
    os.makedirs(OUT, exist_ok=True)
    settings = {way: repr((load_config('smollm2_grpo'), WAYS[way])) for way in WAYS}
    results = recorded(settings) if add else dict(start={}, runs=[])
    found = {(r['way'], r['seed']): r for r in results['runs']}
    start = cache(lambda: build_causal_lm(MODEL, None, 'float32', None, 'MODEL').eval())  # which takes 13 seconds
    measured = [int(seed) for seed in elsewhere.split(',') if seed]
    answers = cache(lambda: answers_of(start()))  # which take minutes
    if measured:
        results['start'] = kept(
            os.path.join(OUT, 'start costs.json'), f'{MODEL}, right answers, {PROBLEMS} problems',
            lambda: dict(costs(start(), start(), answers()), right_answers=kl_of_right_answers(start()))
        )
    path = os.path.join(PAGES if write else OUT, 'demo_llm.md')
    for way, seed in itertools.product(ways.split(','), map(int, seeds.split(','))):
        result = found.get((way, seed))
        if result is None or seed in measured and 'kl' not in result['trained']:
            result = measure(way, seed, settings[way], start, answers if seed in measured else None)
            found[way, seed] = dict(result, label=WAYS[way].label, settings=settings[way])
            results['runs'] = sorted(found.values(), key=lambda r: (list(WAYS).index(r['way']), r['seed']))
            write_results(results, path, write)  # after each run, so that none is lost
        click.echo(
            f"{way} seed {seed}: {result['curve'][0][1]:.1%} before, {result['trained']['right']:.1%} after "
            f"{result['seconds']:.0f} s, {result['interpolated']['right']:.1%} with {SHARE} of the start"
        )
    write_results(results, path, write)
    samples = [[repr(text) for text in sample] for sample in results['runs'][0]['samples']]
    click.echo(f"{runs_table(results, 'simple')}\n\n{tabulate(samples, ['held-out problem', 'before', 'after'])}")
    click.echo(f'{path} and {os.path.splitext(path)[0]}.png')


if __name__ == '__main__':
    main()
