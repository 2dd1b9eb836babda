"""Measured figures of the prose are those of the result pages that it links to."""
import os
import re
from typing import Iterator

import pytest

from tests.project.documents import PAGES, links, read, split

RESULTS = [page for page in PAGES if page.startswith(os.path.join('docs', 'results'))]
PROSE = [page for page in PAGES if page == 'README.md' or page.startswith('docs') and page not in RESULTS]
NUMBER = r'(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?'
UNIT = r'(?:%|m?s|(?:mi(?:lli|cro))?seconds?|min(?:utes?)?|hours?|[KMGT]i?B|tokens/s|[GT]FLOP/s|[GT]B/s)(?![\w/])'
JOIN = r'(?:[,;]| to| and| or)* \(?'
FIGURES = re.compile(rf'{NUMBER}(?:{JOIN}{NUMBER}\)?)*[ -]?{UNIT}(?: \([^()]*\))?')


def prose(page: str) -> str:
    """Without code, without targets of links, and without generated parts, which other tests compare."""
    text = re.sub(r'<!-- \S+: .*? -->.*?<!-- end -->', '', split(page)[0], flags=re.DOTALL)
    return re.sub(r'`[^`\n]*`|\]\([^)\s]*\)', '', text)


def numbers(text: str) -> Iterator[str]:
    return (number.replace(',', '') for number in re.findall(NUMBER, text))


def figures(text: str) -> Iterator[str]:
    """
    Numbers before a unit, and those of a table's column whose head names a unit. One or two digits without a decimal
    point are left out, because some page always has them.
    """
    found, head = [match[0] for match in FIGURES.finditer(text.replace('\n', ' '))], None
    for line in text.splitlines():
        cells = line.strip('|').split('|') if line.startswith('|') else None
        head = cells and (head or cells)
        found += [cell for name, cell in zip(head or (), cells or ()) if re.search(rf'(?:^|, ?) ?{UNIT}', name)]
    return (number for number in numbers('\n'.join(found)) if '.' in number or len(number) > 2)


@pytest.mark.parametrize(
    'text, found', [
        ('84.4, 82.0\nand 84.4 % of 128 problems in 12 to 14.5 minutes', '84.4 82.0 84.4 14.5'),
        ('32.7 s (28.8 to 1,047.2), 12-ms steps of 100 rows', '32.7 28.8 1047.2'),
        ('| seed | memory, GiB | a row |\n|---|---|---|\n| 100 | 3.58 (2.9) | 250 |\n\n| 300 |', '3.58 2.9'),
        ('torch 2.12.1, 300 updates, 5 seeds at 1.5e-4', ''),
    ]
)
def test_figures_are_found(text, found):
    assert list(figures(text)) == found.split()


@pytest.mark.parametrize('page', PROSE)
def test_each_figure_of_the_prose_is_on_a_result_page_that_it_links_to(page):
    """By its digits alone: another figure with the same digits hides a missing one. Ratios are not looked for."""
    linked = {os.path.normpath(os.path.join(os.path.dirname(page), target)) for target, _ in links(page)}
    held = {number for result in linked.intersection(RESULTS) for number in numbers(read(result))}
    assert [figure for figure in figures(prose(page)) if figure not in held] == []


def test_the_readme_is_short():
    text = read('README.md')
    assert len(text.splitlines()) <= 100
    assert text.index('from ding_grpo import GRPO') < text.index('![') < text.index('serial_onpolicy')
    assert len(list(figures(prose('README.md')))) <= 12
