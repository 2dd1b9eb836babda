"""
The table "Benchmarks" of README.md, from benchmarks/results.json: ``python benchmarks/readme.py``. The programs that
measure do not call it, so that README never shows half of a measurement.
"""
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

import click
from tabulate import tabulate

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = '<!-- benchmarks/readme.py: begin -->', '<!-- end -->'
GIB = 2 ** 30


class Row(NamedTuple):
    """
    Overview:
        A row of the table: what it says, and the entry of benchmarks/results.json, by work and threads.
    """
    text: str
    work: str
    threads: int
    peer: str
    page: str


TRL, GAME = 'TRL', 'TRL, `environment_factory`'
ROWS = [
    Row('prompt 16, completion 256, 8 per prompt', 'update_L16_T256_G8', 1, TRL, 'speed.md'),
    Row('prompt 64, completion 512, 8 per prompt', 'update_L64_T512_G8', 1, TRL, 'speed.md'),
    Row('prompt 16, completion 512, 4 per prompt', 'update_L16_T512_G4', 1, TRL, 'speed.md'),
    Row('prompt 96, completion 256, 8 per prompt', 'update_L96_T256_G8', 1, TRL, 'speed.md'),
    Row('prompt 19, completion 16, 8 per prompt', 'update_L19_T16_G8', 1, TRL, 'speed.md'),
    Row('prompt 256, completion 32, 8 per prompt', 'update_L256_T32_G8', 1, TRL, 'speed.md'),
    Row('prompt 512, completion 64, 16 per prompt', 'update_L512_T64_G16', 1, TRL, 'speed.md'),
    Row('prompt 256, completion 32, 8 per prompt, vocabulary 32,000', 'update_L256_T32_G8_V32000', 1, TRL, 'speed.md'),
    Row('a game of three turns', 'game', 1, GAME, 'turns_beside_trl.md'),
    Row('SmolLM2-135M, short prompt, completion 512', 'llm_T512', 2, TRL, 'llm_beside_trl.md'),
    Row('SmolLM2-135M, short prompt, completion 128', 'llm_T128', 2, TRL, 'llm_beside_trl.md'),
    Row('SmolLM2-135M, long prompt, completion 4', 'llm_T4_rows_16', 2, TRL, 'llm_beside_trl.md'),
    Row('GRPO loss from hidden states', 'loss_from_hidden', 1, 'Liger', 'benchmarks.md'),
]
PACKAGES = {TRL: 'trl', GAME: 'trl', 'Liger': 'liger-kernel'}
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
        The text between ``BEGIN`` and ``END``.
    Arguments:
        - results (:obj:`List[Dict[str, Any]]`): What benchmarks/results.json holds.
    """
    found = {(r['work'], r['threads'], r['instructions']): r for r in results}
    own = max((r['instructions'] for r in results), key=lambda name: name != OLD)
    lines, shown = [], []
    for row in ROWS:
        r = found[row.work, row.threads, own]
        old = found.get((row.work, row.threads, OLD))
        shown += [r] if old is None else [r, old]
        threads = '' if row.threads == 1 else f', {row.threads} threads'
        lines.append(
            [
                row.text + threads, f"{seconds(r['ours'])}, {memory(r['memory_ours'])}",
                f"{row.peer} {r['versions'][PACKAGES[row.peer]]}: {seconds(r['peer'])}, {memory(r['memory_peer'])}",
                ratio(r),
                ratio(old), f'[{row.page[:-3]}](docs/{row.page})'
            ]
        )
    solve = found['solve_think_answer', 1, own]
    lines.append(
        [
            'think_answer until solved', f"{solve['ours']:.0f} s, {solve['solved_ours']} of {solve['seeds']} seeds; "
            f"without the entropy bonus, which TRL lacks, {solve['plain']:.0f} s, {solve['solved_plain']} of "
            f"{solve['seeds']}", f"TRL {solve['versions']['trl']}: {solve['peer']:.0f} s, {solve['solved_peer']} of "
            f"{solve['seeds']}", '', '', '[solve](docs/solve.md)'
        ]
    )
    head = ['work', 'this project', 'compared with', f'ratio, {own}', f'ratio, {OLD}', 'details']
    processors = ' and '.join(dict.fromkeys(r['processor'] for r in shown))
    rounds = min(r['rounds'] for r in shown)
    return (
        f'Median of at least {rounds} rounds, in which both sides alternate; smallest and largest in parentheses. '
        f'One thread, unless the row says otherwise.\nProcessor: {processors}, with its own instruction set ({own}), '
        f'and restricted to {OLD} (`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`).\n\n'
        f"{tabulate(lines, head, tablefmt='pipe', disable_numparse=True)}"
    )


def filled(readme: str, results: List[Dict[str, Any]]) -> str:
    """README.md with the table in place."""
    before, rest = readme.split(BEGIN)
    return f'{before}{BEGIN}\n{table(results)}\n{END}{rest.split(END, 1)[1]}'


@click.command()
def main() -> None:
    """Write the table into README.md."""
    path = os.path.join(ROOT, 'README.md')
    with open(os.path.join(ROOT, 'benchmarks', 'results.json')) as f:
        results = json.load(f)
    with open(path, encoding='utf-8') as f:
        text = filled(f.read(), results)
    with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
    click.echo(text[text.index(BEGIN):text.index(END)])


if __name__ == '__main__':
    main()
