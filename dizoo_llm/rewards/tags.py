"""
Rewards for completions of the form ``thoughts </think> <answer> x </answer>``; the prompt opens the think tag. They
read only the completion, so that a worked example in the prompt earns nothing.
"""
import re

_TAG = r'</?(?:think|answer)>'
_NO_TAG = rf'(?:(?!{_TAG}).)*'  # any text without a tag
_ANSWER = re.compile(rf'<answer>({_NO_TAG})</answer>', re.DOTALL)
_FORM = re.compile(rf'{_NO_TAG}</think>\s*<answer>\s*(?!{_TAG})\S{_NO_TAG}</answer>\s*', re.DOTALL)


def answer_reward(completion: str, answer: str) -> float:
    """
    Overview:
        1 if the completion contains a complete answer block and every complete block gives the right answer, else 0. \
        A completion that lists different answers earns nothing.
    Arguments:
        - completion (:obj:`str`): The policy's text, without the prompt.
        - answer (:obj:`str`): The right answer, compared without surrounding white space.
    Returns:
        - reward (:obj:`float`): 0 or 1.
    """
    given = [block.strip() for block in _ANSWER.findall(completion)]
    return float(bool(given) and all(g == answer.strip() for g in given))


def format_reward(completion: str) -> float:
    """
    Overview:
        A quarter for each of: ``</think>`` occurs once, ``<answer>`` occurs once, ``</answer>`` occurs once, and the \
        whole text is ``thoughts </think> <answer> x </answer>`` with no other tag, a non-empty x, and no other text \
        after the thoughts. The partial credit lets a random policy improve step by step.
    Arguments:
        - completion (:obj:`str`): The policy's text, without the prompt.
    Returns:
        - reward (:obj:`float`): 0, 0.25, 0.5, 0.75 or 1.
    """
    once = sum(completion.count(tag) == 1 for tag in ('</think>', '<answer>', '</answer>'))
    return (once + (_FORM.fullmatch(completion) is not None)) / 4
