"""Functions of a script as a file of their own."""
import runpy
import sys
from types import ModuleType

import pytest

from ding_grpo.bonus.sources import of_script, source_of

SCRIPT = """
import math
import re as regex
from math import floor as down
from os.path import join

BAR, NAMES = 0.5, ['a', ('b', None)]
other = object()


def helper(x):
    return down(x) + len(NAMES)


def reward(completion, answer):
    number = regex.match(r'\\d+', completion)
    return helper(math.sqrt(float(number[0]))) > BAR and join('a', 'b') == 'a/b'


def odd(completion):
    return other is completion
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The names of a script that runs."""
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    module = ModuleType('__main__')
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, '__main__', module)
    exec(compile(SCRIPT, str(path), 'exec'), vars(module))
    return vars(module)


def test_imports_constants_and_functions_that_it_uses(script, tmp_path):
    assert of_script(script['reward']) and not of_script(len) and not of_script(pytest.fixture)
    text = source_of([script['reward']])
    (tmp_path / 'rewards.py').write_text(text)
    assert 'import re as regex' in text and 'odd' not in text and 'other' not in text
    assert runpy.run_path(str(tmp_path / 'rewards.py'))['reward']('9 apples', '') is True


def test_what_cannot_be_written_is_named(script):
    with pytest.raises(ValueError, match='other is no constant that can be written'):
        source_of([script['odd']])
    local = eval('lambda x: x', dict(__name__='__main__'))
    with pytest.raises(ValueError, match='<lambda> is not defined at the top of the script'):
        source_of([local])
