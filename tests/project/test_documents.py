"""Links, paths and generated parts of the pages."""
import glob
import os
import re

import pytest

from benchmarks import tables
from ding_grpo.rl_utils import LOSS_PRESETS
from tests.project.documents import PAGES, ROOT, links, read, split

SOURCES = ('ding_common', 'ding_grpo', 'dizoo_llm', 'config', 'benchmarks', 'tools', 'examples')
FOLDERS = '|'.join((*SOURCES, 'docs', 'tests'))
FILES = [path for name in SOURCES for path in glob.glob(f'{ROOT}/{name}/**/*.py', recursive=True)]
RANGE = (
    'clip', 'dppo_tv', 'dppo_kl', 'geo_mean', 'clip_cov', 'cpgd', 'fipo', 'm2po'
)  # surrogates with a clipping range


def anchors(page):
    """Of the headings of a page, as a forge makes them, and as the site does."""
    headings = re.findall(r'^#+ (.*)$', split(page)[0], re.MULTILINE)
    texts = [re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).replace('`', '') for heading in headings]
    plain = [re.sub(r'[^\w\s-]', '', text).strip().lower() for text in texts]
    return {re.sub(r'\s', '-', text) for text in plain} & {re.sub(r'[-\s]+', '-', text) for text in plain}


def test_nothing_asks_to_install_a_name_that_anybody_may_register():
    """The public index has no ding-grpo. Its extras are installed from a clone."""
    for path in [*FILES, *PAGES]:
        assert not re.search(r'install [^`\n]*ding[-_]grpo\b(?!/)', read(path)), path


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
    for target, anchor in links(page):
        if target.startswith('http'):
            assert re.match(r'https?://[\w.-]+\.\w+(/\S*)?$', target), target
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
        assert os.path.exists(os.path.join(ROOT, path)), f'{page}: {target}'
        assert not anchor or anchor in anchors(path), f'{page}: {target}#{anchor}'


@pytest.mark.parametrize('page', [page for page in PAGES if page != 'CHANGELOG.md'])
def test_files_that_a_page_names_exist(page):
    for path in re.findall(rf'`((?:{FOLDERS})/[\w/.-]+)`', split(page)[0]):
        assert os.path.exists(os.path.join(ROOT, path)), f'{page}: {path}'


def test_pages_that_the_sources_name_exist():
    found = {target for path in FILES for target in re.findall(r'\bdocs/[\w/]+\.md(?:#[\w-]+)?', read(path))}
    assert len(found) > 10
    for page, _, anchor in (target.partition('#') for target in found):
        assert page in PAGES and (not anchor or anchor in anchors(page)), f'{page}#{anchor}'


def test_each_page_is_in_the_navigation():
    navigation = re.findall(r'[\w/]+\.md', read('mkdocs.yml').partition('\nnav:')[2])
    results = os.path.join('docs', 'results')
    pages = [page for page in PAGES if page.startswith('docs') and not page.startswith(results)]
    assert sorted(navigation) == sorted([*(os.path.relpath(page, 'docs') for page in pages), 'results/results.md'])


@pytest.mark.parametrize('page', [page for page in PAGES if '<!-- end -->' in read(page)])
def test_the_reference_is_that_of_the_sources(page, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, 'tools', 'docs'))
    from reference import written
    assert written(read(page)) == read(page), 'run: python tools/docs/reference.py'


def test_figures_are_those_that_the_measuring_programs_have_written():
    assert read('docs/results/benchmarks.md') == tables.page(), 'make bench NAME=tables'


@pytest.mark.parametrize('name', LOSS_PRESETS)
def test_a_preset_is_documented_with_its_values(name):
    """In the first table of losses.md; its formula in another row, with its own name or that of its surrogate."""
    page, preset = read('docs/reference/losses.md'), LOSS_PRESETS[name]
    rows = re.findall(r'^\| `(\w+)` \| (\w+) \| (\w+) \| (\w+) \| ([^|]*) \| `?(\w+)`? *\|$', page, re.M)
    assert [row[0] for row in rows] == list(LOSS_PRESETS)
    row, = (row[1:] for row in rows if row[0] == name)
    bounds = [x for x in (preset.clip_ratio, preset.clip_ratio_high) if x is not None]
    clip = f'bound {bounds[-1]}' if preset.surrogate == 'cispo' else 'none'
    if preset.surrogate in RANGE:
        clip, row = bounds, (*row[:3], [float(bound) for bound in row[3].split(', ')], row[4])
    assert row == (preset.ratio, preset.surrogate, preset.reduction, clip, preset.adv_method)
    assert page.count(f'| `{name}` |') >= 2 or f'| `{preset.surrogate}` |' in page
