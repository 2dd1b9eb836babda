"""Links, paths and generated parts of the pages."""
import glob
import os
import re

import pytest

from tests.project.documents import GENERATED, PAGES, ROOT, links, read, split

SOURCES = ('ding_common', 'ding_grpo', 'dizoo_llm', 'config', 'benchmarks', 'tools', 'examples')
FOLDERS = '|'.join((*SOURCES, 'docs', 'tests'))
LONGEST = 400  # characters of a line of prose


def anchors(page):
    """Of the headings of a page, as a forge makes them, and as the site does."""
    headings = [
        re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', h) for h in re.findall(r'^#+ (.*)$',
                                                                       split(page)[0], re.MULTILINE)
    ]
    plain = [re.sub(r'[^\w\s-]', '', heading.replace('`', '')).strip().lower() for heading in headings]
    return {re.sub(r'\s', '-', text) for text in plain} & {re.sub(r'[-\s]+', '-', text) for text in plain}


def long_lines(prose):
    """Lines of prose with more than ``LONGEST`` characters. Rows of tables and definitions of links may be longer."""
    return [line for line in prose.splitlines() if len(line) > LONGEST and not re.match(r' *(\||\[[^\]]+\]: )', line)]


@pytest.mark.unittest
@pytest.mark.parametrize('page', [page for page in PAGES if page != 'CHANGELOG.md' and not page.startswith(GENERATED)])
def test_no_paragraph_in_one_line(page):
    """Blocks are not prose, and the reference has the docstrings of the sources."""
    assert not long_lines(split(page)[0])


@pytest.mark.unittest
def test_a_long_line_is_noticed():
    for line in ('word ' * 81, f'- {"a" * 400}', f'  {"a" * 400}'):
        assert long_lines(f'a\n{line}\nb') == [line]
    assert not long_lines(f'{"a" * 400}\n| {"a" * 400} |\n[name]: https://{"a" * 400}.org')


@pytest.mark.unittest
def test_nothing_asks_to_install_a_name_that_anybody_may_register():
    """The public index has no ding-grpo. Its extras are installed from a clone."""
    paths = [path for name in SOURCES for path in glob.glob(f'{ROOT}/{name}/**/*.py', recursive=True)]
    for path in [*paths, *(os.path.join(ROOT, page) for page in PAGES)]:
        assert not re.search(r'install [^`\n]*ding[-_]grpo\b(?!/)', read(path)), path


@pytest.mark.unittest
class TestLinks:

    @pytest.mark.parametrize('page', PAGES)
    def test_lead_somewhere(self, page):
        for target, anchor in links(page):
            if target.startswith('http'):
                assert re.match(r'https?://[\w.-]+\.\w+(/\S*)?$', target), target
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
            assert os.path.exists(os.path.join(ROOT, path)), f'{page}: {target}'
            assert not anchor or anchor in anchors(path), f'{page}: {target}#{anchor}'

    def test_there_are_some(self):
        found = [link for page in PAGES for link in links(page)]
        assert len(found) > 200 and sum(bool(anchor) for _, anchor in found) > 20
        assert {'bias', 'rewards-and-credit'} <= anchors('docs/tutorials/own_game.md')

    @pytest.mark.parametrize('page', [page for page in PAGES if page != 'CHANGELOG.md'])
    def test_files_that_a_page_names_exist(self, page):
        for path in re.findall(rf'`((?:{FOLDERS})/[\w/.-]+)`', split(page)[0]):
            assert os.path.exists(os.path.join(ROOT, path)), f'{page}: {path}'

    def test_pages_that_the_sources_name_exist(self):
        found = set()
        for folder in SOURCES:
            for path in glob.glob(os.path.join(ROOT, folder, '**', '*.py'), recursive=True):
                with open(path, encoding='utf-8') as f:
                    found |= set(re.findall(r'\bdocs/[\w/]+\.md(?:#[\w-]+)?', f.read()))
        assert len(found) > 10
        for target in found:
            page, _, anchor = target.partition('#')
            assert page in PAGES and (not anchor or anchor in anchors(page)), target


@pytest.mark.unittest
class TestReference:

    @pytest.fixture
    def written(self, monkeypatch):
        monkeypatch.syspath_prepend(os.path.join(ROOT, 'tools', 'docs'))
        import reference
        return reference.written

    @pytest.mark.parametrize('page', [page for page in PAGES if '<!-- end -->' in read(page)])
    def test_is_that_of_the_sources(self, written, page):
        assert written(read(page)) == read(page), 'run: python tools/docs/reference.py'

    def test_has_every_package_and_section(self):
        text = ''.join(map(read, glob.glob(os.path.join(ROOT, 'docs', 'reference', '*.md'))))
        for name in ('GRPOPolicy', 'grpo_error', 'CausalLM', 'generate', 'GroupCollector', 'Task', 'ConfigError'):
            assert f'\n### `{name}`\n' in text, name
        for key in ('policy.learn', 'policy.collect', 'env', 'policy.collect.collector', 'main_config.train'):
            assert f'\n### `{key}`\n' in text, key
        assert '<!-- api:' in text and not re.search(r'^<!-- (api|config): .+ -->\n<!-- end', text, re.MULTILINE)

    def test_required_and_optional_keys_of_the_pipelines(self):
        from ding.config.config import env_config_template

        from ding_common import ConfigError
        from ding_common.config.env_config import pop_number
        text = read('docs/reference/config.md').partition("keys of DI-engine's pipelines:")[2].partition('##')[0]
        keys = dict(re.findall(r'^\| `(\w+)` \| `\w+` \| `?([^`|]+?)`? \|', text, re.MULTILINE))
        assert len(keys) == 5 and {'n_evaluator_episode', 'stop_value'} <= set(keys)
        for key, default in keys.items():
            if default == 'required':
                with pytest.raises(ConfigError, match=f'env.{key}: missing'):
                    pop_number({}, key)
            else:
                assert eval(default) == env_config_template[key], key

    def test_a_new_key_and_a_removed_name_are_noticed(self, written):
        page = read('docs/reference/config.md')
        assert written(page.replace('| `learning_rate` |', '| `learning` |')) == page
        with pytest.raises(ValueError, match='no class Nothing'):
            written('<!-- config: Nothing env -->\n<!-- end -->\n')
