"""The limits of the repository's layout: targets, pages, programs."""
import glob
import os
import re
from collections import Counter

import pytest

from tests.project.documents import GENERATED, PAGES, ROOT, links, read, split

DOCS = [page for page in PAGES if page.startswith('docs')]
RESULTS = [page for page in DOCS if page.startswith(os.path.join('docs', 'results'))]
PROSE = [page for page in DOCS if page not in RESULTS and page not in GENERATED]
LONGEST = 400  # characters of a line of prose


def test_at_most_15_targets_and_help_first():
    text = read('Makefile')
    targets = re.findall(r'^([a-z-]+):', text, re.MULTILINE)
    phony, = (line.split()[1:] for line in text.splitlines() if line.startswith('.PHONY:'))
    assert targets[0] == 'help' and len(targets[1:]) <= 15 and sorted(phony) == sorted(targets)


def test_at_most_29_pages_of_prose_and_no_two_of_one_name():
    names = Counter(os.path.basename(page) for page in DOCS)
    titles = Counter(read(page).partition('\n')[0] for page in DOCS)
    assert 15 <= len(PROSE) <= 29 and [name for name, count in (names + titles).items() if count > 1] == []


def test_each_result_is_reached_from_a_page_of_prose():
    linked = {os.path.normpath(os.path.join(os.path.dirname(a), b)) for a in PROSE for b, _ in links(a) if b}
    assert [page for page in RESULTS if page not in linked and not page.endswith('results.md')] == []


@pytest.mark.parametrize('page', [page for page in PAGES if page != 'CHANGELOG.md' and not page.startswith(GENERATED)])
def test_no_paragraph_in_one_line(page):
    """But rows of tables and definitions of links, and blocks of code."""
    lines = [line for line in split(page)[0].splitlines() if not re.match(r' *(\||\[[^\]]+\]: )', line)]
    assert [line for line in lines if len(line) > LONGEST] == []


def test_each_benchmark_has_a_row_or_is_used_by_one():
    paths = glob.glob(os.path.join(ROOT, 'benchmarks', '*', '*.py'))
    configs = glob.glob(os.path.join(ROOT, 'config', '*.py'))
    mentions = ''.join(map(read, [os.path.join('benchmarks', 'README.md'), *paths, *configs]))
    for path in (os.path.relpath(path, os.path.join(ROOT, 'benchmarks')) for path in paths):
        assert path in mentions or path[:-3].replace(os.sep, '.') in mentions, path
    assert max(Counter(map(os.path.dirname, paths)).values()) <= 14  # modules of a folder
