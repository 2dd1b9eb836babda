import pickle

import pytest

from ding_common import ConfigError
from ding_common.files import check_links, import_name, run_file

pytestmark = pytest.mark.unittest


def test_what_a_file_defines_can_be_pickled(tmp_path):
    (tmp_path / 'a.b.py').write_text('x = 3\nclass Kind(str):\n    pass\ndef double(x):\n    return 2 * x')
    found = run_file(str(tmp_path / 'a.b.py'), 'key')
    kind, double = pickle.loads(pickle.dumps((found['Kind']('hard'), found['double'])))
    assert kind == 'hard' and type(kind) is found['Kind'] and double(found['x']) == 6


@pytest.mark.parametrize('content', ['1 / 0', 'raise SystemExit(2)', 'def', 'import nowhere_to_be_found', None])
def test_a_file_that_fails(tmp_path, content):
    if content is not None:
        (tmp_path / 'a.py').write_text(content)
    why = '' if content is not None else r'there is no such file\.'
    with pytest.raises(ConfigError, match=rf"^a.key = '.*a.py': {why}") as caught:
        run_file(str(tmp_path / 'a.py'), 'a.key')
    assert '\n' not in caught.value.message
    with pytest.raises(ConfigError, match=r'a.key = .*: is not a file\.'):
        run_file(str(tmp_path), 'a.key')


def test_links_within_a_folder_and_out_of_it(tmp_path):
    folder = tmp_path / 'folder'
    (folder / 'below').mkdir(parents=True)
    (folder / 'file').touch()
    (folder / 'below' / 'link').symlink_to('../file')
    check_links(str(folder), 'key')
    (tmp_path / 'folder2').mkdir()
    (folder / 'below' / 'out').symlink_to(tmp_path / 'folder2')  # whose path begins with that of the folder
    with pytest.raises(ConfigError, match='key = .*below/out is a link to .*folder2, outside the folder'):
        check_links(str(folder), 'key')


def test_a_function_that_nothing_would_await_is_refused(tmp_path, monkeypatch):
    (tmp_path / 'waiting.py').write_text('async def loss(ratio):\n    return ratio')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="^key = 'waiting:loss': is defined by async def, and must be an ordinary"):
        import_name('waiting:loss', 'key')
