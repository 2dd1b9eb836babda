"""
Rewards for completions of the form ``thoughts </think> <answer> x </answer>``; the prompt opens the think tag. They
read only the completion, so that a worked example in the prompt earns nothing.
"""
import itertools
import re

_TAG = r'</?(?:think|answer)>'
_NO_TAG = rf'(?:(?!{_TAG}).)*'  # any text without a tag
_ANSWER = re.compile(rf'<answer>({_NO_TAG})</answer>', re.DOTALL)
_FORM = re.compile(rf'{_NO_TAG}</think>\s*<answer>\s*(?!{_TAG})\S{_NO_TAG}</answer>\s*', re.DOTALL)


def answer_reward(completion: str, answer: str) -> float:
    """
    1 if the completion, without the prompt, contains a complete answer block and every complete block gives the right
    answer, compared without surrounding white space, else 0. A completion that lists different answers earns nothing.
    """
    given = [block.strip() for block in _ANSWER.findall(completion)]
    return float(bool(given) and all(g == answer.strip() for g in given))


def format_reward(completion: str) -> float:
    """
    A third for each tag in its place: the first tag of the completion is ``</think>``, the second ``<answer>``, the
    third ``</answer>``. The partial credit lets a random policy improve step by step. Tags out of order earn nothing: a
    policy that puts the answer before ``</think>`` would stay there.
    """
    pairs = zip(re.findall(_TAG, completion), ('</think>', '<answer>', '</answer>'))
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)) / 3


def is_formatted(completion: str) -> bool:
    """
    Whether the whole completion is ``thoughts </think> <answer> x </answer>`` with no other tag, a non-empty x, and no
    other text after the thoughts.
    """
    return _FORM.fullmatch(completion) is not None
