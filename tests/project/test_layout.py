"""The limits of the repository's layout: targets, pages and programs."""
import glob
import os
import re
from collections import Counter

import pytest

from benchmarks.programs import programs
from tests.project.documents import GENERATED, PAGES, ROOT, links, read

DOCS = [page for page in PAGES if page.startswith('docs')]
RESULTS = [page for page in DOCS if page.startswith(os.path.join('docs', 'results'))]
PROSE = [page for page in DOCS if page not in RESULTS and page not in GENERATED]
FOLDERS = ('get_started', 'tutorials', 'recipes', 'guides', 'reference', 'design', 'results')  # of the navigation


@pytest.mark.unittest
def test_at_most_15_targets_and_help_first():
    text = read('Makefile')
    targets = re.findall(r'^([a-z-]+):', text, re.MULTILINE)
    phony, = (line.split()[1:] for line in text.splitlines() if line.startswith('.PHONY:'))
    assert targets[0] == 'help' and len(targets) <= 15 and sorted(phony) == sorted(targets)


@pytest.mark.unittest
class TestPages:

    def test_prose_is_on_at_most_25(self):
        assert 15 <= len(PROSE) <= 25

    def test_no_two_have_one_name_or_one_title(self):
        names = Counter(os.path.basename(page) for page in DOCS)
        titles = Counter(read(page).partition('\n')[0] for page in DOCS)
        assert [name for name, count in (names + titles).items() if count > 1] == []

    def test_each_lies_in_a_folder_of_the_navigation(self):
        assert {os.path.dirname(page) for page in DOCS} == {'docs', *(os.path.join('docs', name) for name in FOLDERS)}
        assert [page for page in DOCS if os.path.dirname(page) == 'docs'] == [os.path.join('docs', 'index.md')]

    def test_each_page_of_prose_is_in_the_navigation(self):
        navigation = re.findall(r'[\w/]+\.md', read('mkdocs.yml').partition('\nnav:')[2])
        expected = [os.path.relpath(page, 'docs') for page in DOCS if page not in RESULTS]
        assert sorted(navigation) == sorted([*expected, 'results/results.md'])

    @pytest.mark.parametrize('page', [page for page in RESULTS if not page.endswith('results.md')])
    def test_a_result_is_reached_from_a_page_that_summarises_it(self, page):
        linked = {os.path.normpath(os.path.join(os.path.dirname(a), b)) for a in PROSE for b, _ in links(a) if b}
        assert page in linked

    def test_a_generated_page_does_not_outweigh_the_rest(self):
        sizes = {page: len(read(page)) for page in RESULTS}
        assert max(sizes.values()) < 40_000, sizes


@pytest.mark.unittest
class TestBenchmarks:

    @pytest.mark.parametrize('program', programs().values(), ids=programs())
    def test_each_has_a_program_and_a_page(self, program):
        module, = re.findall(r'python -m ([\w.]+)', program.command)
        path = module.replace('.', os.sep) + '.py'
        assert os.path.exists(os.path.join(ROOT, path)) and os.path.exists(os.path.join(ROOT, program.page))
        assert set(program.needs) <= set(re.findall(r'^NEEDS_(\w+) :=', read('Makefile'), re.MULTILINE))

    def test_each_program_has_a_row_or_is_used_by_one(self):
        folder = os.path.join(ROOT, 'benchmarks')
        paths = glob.glob(os.path.join(folder, '*', '*.py'))
        mentions = read(os.path.join('benchmarks', 'README.md'))
        mentions += ''.join(map(read, [*paths, *glob.glob(os.path.join(ROOT, 'config', '*.py'))]))
        for path in (os.path.relpath(path, folder) for path in paths):
            assert path in mentions or path[:-3].replace(os.sep, '.') in mentions, path

    def test_no_folder_has_more_than_14_modules(self):
        paths = glob.glob(os.path.join(ROOT, 'benchmarks', '**', '*.py'), recursive=True)
        assert max(Counter(map(os.path.dirname, paths)).values()) <= 14
