"""
The tables of docs/results/benchmarks.md, from the files that the measuring programs write. These do not call it, so
that the page never shows half of a measurement.
"""
import json
import os
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

import click
from tabulate import tabulate

from benchmarks.demos.llm_page import MINUTES, early
from benchmarks.shared.hardware import brand
from benchmarks.shared.paths import ROOT

BEGIN, END = '<!-- benchmarks/tables.py: {} -->', '<!-- end -->'
PAGE = ('docs', 'results', 'benchmarks.md')
GIB = 2 ** 30


class Row(NamedTuple):
    """
    Overview:
        A row of the table: what it says, and the entry of benchmarks/results/results.json, by work and threads.
    """
    text: str
    work: str
    threads: int
    peer: str
    page: str


TRL, GAME, LIGER = 'TRL {}', 'TRL {}, `environment_factory`', 'Liger {}'  # with a version
ROWS = [
    Row('prompt 16, completion 256, 8 per prompt', 'update_L16_T256_G8', 1, TRL, 'speed'),
    Row('prompt 64, completion 512, 8 per prompt', 'update_L64_T512_G8', 1, TRL, 'speed'),
    Row('prompt 16, completion 512, 4 per prompt', 'update_L16_T512_G4', 1, TRL, 'speed'),
    Row('prompt 96, completion 256, 8 per prompt', 'update_L96_T256_G8', 1, TRL, 'speed'),
    Row('prompt 19, completion 16, 8 per prompt', 'update_L19_T16_G8', 1, TRL, 'speed'),
    Row('prompt 256, completion 32, 8 per prompt', 'update_L256_T32_G8', 1, TRL, 'speed'),
    Row('prompt 512, completion 64, 16 per prompt', 'update_L512_T64_G16', 1, TRL, 'speed'),
    Row('prompt 256, completion 32, 8 per prompt, vocabulary 32,000', 'update_L256_T32_G8_V32000', 1, TRL, 'speed'),
    Row(
        'a game of three turns; the same prompt of 422 tokens in all 64 rows, vocabulary 403', 'game', 1, GAME,
        'turns_beside_trl'
    ),
    Row(
        'SmolLM2-135M, prompts of at most 40 tokens, completion 512, 4 per prompt', 'llm_T512', 2, TRL, 'llm_beside_trl'
    ),
    Row(
        'SmolLM2-135M, 2 prompts of at most 40 tokens, completion 128, 8 per prompt', 'llm_T128', 2, TRL,
        'llm_beside_trl'
    ),
    Row(
        'GRPO loss from hidden states: 8 rows of 256 tokens, hidden size 256, vocabulary 32,000', 'loss_from_hidden', 1,
        LIGER, 'loss_time'
    ),
]
PACKAGES = {TRL: 'trl', GAME: 'trl', LIGER: 'liger-kernel'}
OLD = 'AVX2'  # the instruction set of the second column of ratios


def seconds(value: float) -> str:
    return f'{value * 1e3:.0f} ms' if value < 1 else f'{value:.3g} s'


def memory(value: float) -> str:
    return f'{value / 2 ** 20:.0f} MiB' if value < GIB else f'{value / GIB:.1f} GiB'


def ratio(entry: Optional[Dict[str, Any]]) -> str:
    if entry is None:
        return ''
    return f"{entry['ratio']:.2f} ({entry['ratio_low']:.2f} to {entry['ratio_high']:.2f})"


def table(results: List[Dict[str, Any]]) -> str:
    """
    Overview:
        The table of benchmarks.
    Arguments:
        - results (:obj:`List[Dict[str, Any]]`): What benchmarks/results/results.json holds.
    """
    usual, *rest = (name for name, _ in Counter(r['processor'] for r in results).most_common())
    another = next((name for name in rest if name[:3] != usual[:3]), None)  # of another maker
    own = max((r['instructions'] for r in results), key=lambda name: name != OLD)
    others = {(r['work'], r['threads']): r for r in results if r['processor'] == another and r['instructions'] == own}
    found = {(*key, own): r for key, r in others.items()}
    found.update({(r['work'], r['threads'], r['instructions']): r for r in results if r['processor'] == usual})
    lines, shown = [], []
    for row in ROWS:
        r = found.get((row.work, row.threads, own))
        if r is None:  # not measured yet
            continue
        old = found.get((row.work, row.threads, OLD))
        two = found.get((row.work, 2, own)) if row.threads == 1 else None
        shown += [entry for entry in (r, old, two, others.get((row.work, row.threads))) if entry is not None]
        peer = row.peer.format(r['versions'][PACKAGES[row.peer]])
        threads = '' if row.threads == 1 else f', {row.threads} threads'
        other = others.get((row.work, row.threads))
        lines.append(
            [
                row.text + threads, f"{seconds(r['ours'])}, {memory(r['memory_ours'])}",
                f"{peer}: {seconds(r['peer'])}, {memory(r['memory_peer'])}",
                ratio(None if r is other else r),
                ratio(old),
                ratio(two),
                ratio(other), f'[{row.page}]({row.page}.md)'
            ]
        )
    solve = found.get(('solve_think_answer', 1, own))
    if solve is not None:
        seeds = {key: f"{solve[f'solved_{key}']} of {solve['seeds']} seeds" for key in ('ours', 'plain', 'peer')}
        taken = {key: f'{solve[key]:.0f} s, {of}' if key in solve else of for key, of in seeds.items()}
        lines.append(
            [
                'think_answer until solved' + ('' if solve['processor'] == usual else f", {brand(solve['processor'])}"),
                f"{taken['ours']}; without the entropy bonus, which TRL lacks, {taken['plain']}",
                f"TRL {solve['versions']['trl']}: {taken['peer']}", '', '', '', '', '[solve](solve.md)'
            ]
        )
    second = ' and '.join(dict.fromkeys(r['processor'] for r in shown if r['processor'] != usual))
    head = [
        'work', 'this project', 'compared with', f'ratio, {own}', f'ratio, {OLD}', f'ratio, {own}, 2 threads',
        f'ratio, {brand(second)}', 'details'
    ]
    rounds = min(r['rounds'] for r in shown)
    return (
        f'Median of at least {rounds} rounds, in which both sides alternate; smallest and largest in parentheses. '
        f'One thread, unless the row says otherwise.\nProcessor: {usual}, with its own instruction set ({own}), and '
        f'restricted to {OLD} (`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`). {brand(second)}: {second}, '
        'with its own instructions; seconds and memory are from there in a row that has this ratio alone.\n\n'
        f"{tabulate(lines, head, tablefmt='pipe', disable_numparse=True)}"
    )


def percent(values: Iterable[float]) -> str:
    *others, last = (f'{100 * value:.1f}' for value in values)
    return f"{', '.join(others)} and {last} %" if others else f'{last} %'


def span(values: Iterable[float]) -> str:
    values = list(values)
    return f'{min(values):.0f} to {max(values):.0f}'


def learned(llm: Dict[str, Any], words: str) -> str:
    """
    Overview:
        The table of what two models learn, and the text below it.
    Arguments:
        - llm (:obj:`Dict[str, Any]`): What benchmarks/results/demo_llm.json holds.
        - words (:obj:`str`): docs/results/demo_text.md.
    """
    runs = {way: [r for r in llm['runs'] if r['way'] == way] for way in ('full', 'lora', 'sft', 'kl')}
    processor, threads = runs['full'][0]['machine'].rsplit(', torch', 1)[0].rsplit(', ', 1)
    text_rows = [[cell.strip(' %') for cell in line.split('|')[1:-1]] for line in words.splitlines()]
    text_rows = [row for row in text_rows if len(row) == 7 and row[0].isdigit()]
    warm, grpo, _, fresh, of_warm, of_each = zip(*(map(float, row[1:]) for row in text_rows))
    sums = [r['curve'][0][1] for r in runs['full'][:1]]
    lines = [
        [
            'SmolLM2-135M-Instruct: sums and differences. Held-out problems are trained in no form (4 + 6 neither as '
            '6 + 4 nor as 10 - 6)',
            percent(sums),
            percent(early(r['curve']) for r in runs['full']),
            percent(early(r['curve']) for r in runs['sft']), f'{MINUTES} minutes, {threads}'
        ],
        [
            f'A Llama of 0.9 M parameters: words spelled backward, after a supervised warm start of {min(of_warm):.0f} '
            f'to {max(of_warm):.0f} s',
            percent(x / 100 for x in warm),
            percent(x / 100 for x in grpo),
            percent(x / 100 for x in fresh), f'{min(of_each):.0f} to {max(of_each):.0f} s, 1 thread'
        ],
    ]
    head = ['held-out accuracy, three seeds', 'before', 'GRPO', 'supervised, right answers', 'time of each']
    costs = [
        f"{name} {percent([llm['start'][task]])} before, {percent(r['trained'][task] for r in runs['full'])} after"
        for name, task in (('greatest common divisors', 'gcd'), ('counting letters', 'letter_counting'))
    ]
    text = (
        f"{tabulate(lines, head, tablefmt='pipe', disable_numparse=True)}\n\n"
        'Right answers, where somebody writes them, taught about as much on sums, and more on every seed of words. '
        'GRPO needs none, but a start that is sometimes right.\n'
        f"SmolLM2 after all updates of a run, {span(r['seconds'] / 60 for r in runs['full'])} minutes of sampling, "
        'scoring and learning (the 15 minutes above also count logs): '
        f"{percent(r['trained']['right'] for r in runs['full'])}; with LoRA, "
        f"{span(r['seconds'] / 60 for r in runs['lora'])} minutes: "
        f"{percent(r['trained']['right'] for r in runs['lora'])} ({processor}, with instructions for bfloat16). "
        'The number of updates was chosen on these seeds.\n'
        f"What it forgets meanwhile, on tasks that are not trained: {'; '.join(costs)}."
    )
    if runs['kl']:
        text += (
            f"\nWith a KL to the start, {percent(early(r['curve']) for r in runs['kl'])} of the sums and differences "
            f"after {MINUTES} minutes, and {percent(r['trained']['right'] for r in runs['kl'])} after all updates, "
            f"{span(r['seconds'] / 60 for r in runs['kl'])} minutes; greatest common divisors "
            f"{percent(r['trained']['gcd'] for r in runs['kl'])}, counting letters "
            f"{percent(r['trained']['letter_counting'] for r in runs['kl'])}."
        )
    return text


def filled(page: str, name: str, make: Callable[[], str]) -> str:
    """A page with a text in its place."""
    begin = BEGIN.format(name)
    before, rest = page.split(begin)
    return f'{before}{begin}\n{make()}\n{END}{rest.split(END, 1)[1]}'


def loaded(*path: str) -> Any:
    with open(os.path.join(ROOT, *path), encoding='utf-8') as f:
        return json.load(f) if path[-1].endswith('.json') else f.read()


def page() -> str:
    """The page as it should be."""

    def demo() -> str:
        return learned(loaded('benchmarks', 'results', 'demo_llm.json'), loaded('docs', 'results', 'demo_text.md'))

    def benchmarks() -> str:
        return table(loaded('benchmarks', 'results', 'results.json'))

    return filled(filled(loaded(*PAGE), 'demo', demo), 'benchmarks', benchmarks)


@click.command()
def main() -> None:
    """Write the tables into the page."""
    text = page()
    with open(os.path.join(ROOT, *PAGE), 'w', encoding='utf-8') as f:
        f.write(text)
    click.echo(f"written: {'/'.join(PAGE)}")


if __name__ == '__main__':
    main()
