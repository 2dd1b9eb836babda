"""
Assertions about a reward function, for tests; nothing is imported until one is called.

    from ding_grpo.testing import assert_learns, assert_not_hackable

    def test_reward():
        rows = [dict(question='What is 1 + 1?', answer='2'), dict(question='What is 1 + 2?', answer='3')]
        assert_not_hackable(correct, rows)
        assert_learns(correct, rows)
"""
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

if TYPE_CHECKING:
    from .preflight.examination import Part

HACKED = ('junk_pays', 'always_paid', 'wrong_key')
UNKNOWN = ('no_success', 'not_scored', 'junk_not_scored')  # with which nothing is known of hacks


def assert_not_hackable(reward: Union[str, Callable], data: Any, answer: Optional[str] = None) -> None:
    """
    Overview:
        Fail, with one line that shows a text, if a reward function pays as much for junk as for right completions, or
        cannot score them. See ``docs/guides/instruments.md``, "Data and a reward, before there is a run".
    Arguments:
        - reward (:obj:`Union[str, Callable]`): A function, or ``'file.py:function'``, in a form of this project, \
            TRL or verl.
        - data (:obj:`Any`): A file, a list of dicts, or what else a task of files takes as its ``path``.
        - answer (:obj:`Optional[str]`): Column of the reference answers, if it has no usual name.
    """
    __tracebackhide__ = True
    part = _of_reward(reward, data, answer)
    found = [each['message'] for each in part.findings if each['cause'] in (*HACKED, *UNKNOWN)]
    if found:
        raise AssertionError(_line(found[0]))


def assert_learns(reward: Union[str, Callable], data: Any, answer: Optional[str] = None) -> None:
    """
    Overview:
        Fail, with one line, if a tiny model does not learn the reward of four of the problems, at first from the \
        reward alone, then with demonstrations in the first half. Takes up to a minute on one core.
    Arguments:
        As of ``assert_not_hackable``.
    """
    __tracebackhide__ = True
    part = _of_reward(reward, data, answer)
    if part.form is None:
        found = [each['message'] for each in part.findings] or ['no right completion is paid more than a wrong one']
        raise AssertionError(_line(found[0]))
    from .preflight.command import of_data
    from .preflight.learning import of_learning
    env = of_data(data, None, reward, answer, None)[0].env
    tried = of_learning(env, part.form, part.reward, part.seconds)
    if tried.findings or len(tried.lines) == 1:  # or why nothing was tried
        raise AssertionError(_line(tried.findings[0]['message'] if tried.findings else tried.lines[0]))


def _of_reward(reward: Union[str, Callable], data: Any, answer: Optional[str]) -> 'Part':
    from ding_common import import_ding
    import_ding()
    from .preflight.command import of_data
    from .preflight.examination import examined
    return next(part for part in examined(*of_data(data, None, reward, answer, None), False) if part.name == 'reward')


def _line(message: str) -> str:
    return ' '.join(message.split())
