"""
Rewards for completions of the form ``thoughts </think> <answer> x </answer>``, where the prompt has opened the think
tag. They see the completion alone: a worked example in the prompt must not earn anything.
"""
import re

_TAG = r'</?(?:think|answer)>'
_NO_TAG = rf'(?:(?!{_TAG}).)*'  # any text without a tag
_ANSWER = re.compile(rf'<answer>({_NO_TAG})</answer>', re.DOTALL)
_FORM = re.compile(rf'{_NO_TAG}</think>\s*<answer>\s*(?!{_TAG})\S{_NO_TAG}</answer>\s*', re.DOTALL)


def answer_reward(completion: str, answer: str) -> float:
    """
    Overview:
        1 if the completion holds a complete answer block and every complete block in it gives the answer, else 0. \
        Whoever lists several answers has given none.
    Arguments:
        - completion (:obj:`str`): What the policy wrote, without the prompt.
        - answer (:obj:`str`): The right answer, compared without surrounding white space.
    Returns:
        - reward (:obj:`float`): 0 or 1.
    """
    given = [block.strip() for block in _ANSWER.findall(completion)]
    return float(bool(given) and all(g == answer.strip() for g in given))


def format_reward(completion: str) -> float:
    """
    Overview:
        A quarter for each of: ``</think>`` is there once, ``<answer>`` once, ``</answer>`` once, and the whole is \
        ``thoughts </think> <answer> x </answer>`` with no other tag, some x, and nothing else behind the thoughts. \
        The partial credit is what a random policy can climb.
    Arguments:
        - completion (:obj:`str`): What the policy wrote, without the prompt.
    Returns:
        - reward (:obj:`float`): 0, 0.25, 0.5, 0.75 or 1.
    """
    once = sum(completion.count(tag) == 1 for tag in ('</think>', '<answer>', '</answer>'))
    return (once + (_FORM.fullmatch(completion) is not None)) / 4
