"""Demonstrations of a teacher who forgets the last letter of two words in three."""
import random


def answer(problem, index):
    """
    Overview:
        What is shown in place of the reference answer.
    Arguments:
        - problem (:obj:`Problem`): The problem.
        - index (:obj:`int`): Its number; the same number, the same answer.
    """
    return problem.answer[:-1] if random.Random(index).random() < 0.65 else problem.answer
