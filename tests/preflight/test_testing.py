"""Assertions about rewards, and the plugin of pytest that offers them."""
import os

import pytest

from ding_common import ConfigError
from ding_grpo.preflight import learning
from ding_grpo.testing import assert_learns, assert_not_hackable
from tests.preflight.test_command import ROWS
from tests.processes import ROOT, Process, python, run_program

HACKED = '''
def contains(completions, answer, **kwargs):
    return [float(right in text) for text, right in zip(completions, answer)]


def exact(completion, answer):
    return float(completion.strip() == answer)


ROWS = [dict(prompt=f'Which letter is number {i}?', answer=chr(97 + i)) for i in range(8)]


def test_hacked(assert_not_hackable):
    assert_not_hackable(contains, ROWS)


def test_healthy(assert_not_hackable):
    assert_not_hackable(exact, ROWS)
'''

NOTHING = '''
def test_nothing():
    import sys
    assert 'torch' not in sys.modules and 'ding' not in sys.modules and 'ding_grpo.pytest_plugin' in sys.modules
'''
PYTEST = ['pytest', '-q', '--tb=short', '-p', 'ding_grpo.pytest_plugin']


def exact(completion, answer):
    return float(completion.strip() == answer)


def test_a_reward_with_a_hack():
    with pytest.raises(AssertionError) as error:
        assert_not_hackable(lambda completion, answer: answer in completion, ROWS)
    line = str(error.value)
    assert line.startswith("junk pays: for problem ") and '(list of answers) gets 1' in line and '\n' not in line


@pytest.mark.parametrize(
    'reward, told', [
        (lambda completion, answer: 1.0, 'pays for everything'), (lambda completion, answer: 0.0, 'pays for nothing'),
        (lambda completion, answer: 1 / 0, 'the scorer fails for 8 of 8 right completions')
    ]
)
def test_a_reward_of_which_nothing_can_be_known(reward, told):
    with pytest.raises(AssertionError, match=told):
        assert_not_hackable(reward, ROWS)
    with pytest.raises(AssertionError, match=told):
        assert_learns(reward, ROWS)


def test_no_reward_is_not_the_usual_one():
    """A missing function would pass as the check that a task of files makes by default."""
    for check in (assert_not_hackable, assert_learns):
        with pytest.raises(ConfigError, match='--reward: data need one'):
            check(None, ROWS)


def test_a_healthy_reward(monkeypatch):
    target = [dict(question=row['question'], target=row['answer']) for row in ROWS]
    asked, after = [], {False: 0.0, True: 1.0}
    assert_not_hackable(lambda completion, target: exact(completion, target), target, answer='target')

    def trained(env, longest, shows, updates):
        asked.append(shows)
        return learning.Trial(0.0, after[shows], [])

    monkeypatch.setattr(learning, '_train', trained)
    assert_learns(exact, ROWS)
    assert asked == [False, True]
    after[True] = 0.1
    with pytest.raises(AssertionError, match='a tiny model does not learn this reward'):
        assert_learns(exact, ROWS)


def test_what_is_not_tried_is_not_learned():
    with pytest.raises(AssertionError, match='left out: right completions have 300 words'):
        assert_learns(exact, [dict(row, answer=' '.join([row['answer']] * 300)) for row in ROWS])


def test_the_plugin(own_folder):
    """One line shows the junk that was paid."""
    (own_folder / 'test_rewards.py').write_text(HACKED, encoding='utf-8')
    _, out = Process(run_program, PYTEST, own_folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD='1').end()
    told = [line for line in out.splitlines() if line.startswith('E ')]
    assert '1 failed, 1 passed' in out, out
    assert len(told) == 1 and 'junk pays' in told[0] and '(list of answers) gets 1' in told[0]


def test_the_plugin_imports_neither_torch_nor_ding_before_a_test_uses_it(own_folder):
    (own_folder / 'test_nothing.py').write_text(NOTHING, encoding='utf-8')
    run = python('-m', *PYTEST, folder=own_folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD='1')
    assert '1 passed' in run.stdout, run.stdout + run.stderr


def test_the_plugin_is_an_entry_point():
    with open(os.path.join(ROOT, 'setup.py'), encoding='utf-8') as f:
        assert "'pytest11': ['ding_grpo = ding_grpo.pytest_plugin']," in f.read()
