import pickle

import pytest

from ding_common import ConfigError
from ding_common.files import import_name, run_file


def test_what_a_file_defines_can_be_pickled(tmp_path):
    (tmp_path / 'a.b.py').write_text('x = 3\nclass Kind(str):\n    pass\ndef double(x):\n    return 2 * x')
    found = run_file(str(tmp_path / 'a.b.py'), 'key')
    kind, double = pickle.loads(pickle.dumps((found['Kind']('hard'), found['double'])))
    assert kind == 'hard' and type(kind) is found['Kind'] and double(found['x']) == 6


def test_a_function_that_nothing_would_await_is_refused(tmp_path, monkeypatch):
    (tmp_path / 'waiting.py').write_text('async def loss(ratio):\n    return ratio')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="^key = 'waiting:loss': is defined by async def, and must be an ordinary"):
        import_name('waiting:loss', 'key')
