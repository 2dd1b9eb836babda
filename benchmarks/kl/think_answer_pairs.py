"""
Pairs of completions of think_answer for ``dizoo_llm.train_reward_model``. The better one has the higher reward. A
completion is the right one with a few random changes, as a policy writes that has learned part of the task.
"""
import random
from typing import List, Tuple

from dizoo_llm.tasks import ThinkAnswerTask

TASK = ThinkAnswerTask()
MOST = 9  # words, and an end-of-sequence token


def pair(index: int) -> Tuple[str, str, str]:
    """Prompt, better and worse completion: a pure function of the index."""
    draw = random.Random(index)
    problem = TASK.problem(draw.randrange(len(TASK)))
    while True:
        two = sorted((completion(problem.answer, draw) for _ in range(2)), key=lambda text: reward(problem, text))
        if reward(problem, two[0]) < reward(problem, two[1]):
            return problem.prompt, two[1], two[0]


def reward(problem, text: str) -> float:
    """The reward that a run of GRPO would get."""
    return sum(TASK.weights[name] * value for name, value in TASK.score(problem, text).items())


def completion(answer: str, draw: random.Random) -> str:
    """The right completion with up to four changes: a word replaced, removed, inserted or moved."""
    thoughts = [str(draw.randrange(25)) for _ in range(draw.randrange(4))]
    words: List[str] = [*thoughts, '</think>', '<answer>', answer, '</answer>']
    for _ in range(draw.randrange(5)):
        place, change = draw.randrange(len(words)), draw.randrange(4)
        word = draw.choice(TASK.words)
        if change == 0:
            words[place] = word
        elif change == 1 and len(words) > 1:
            del words[place]
        elif change == 2 and len(words) < MOST:
            words.insert(place, word)
        elif change == 3:
            words.insert(draw.randrange(len(words)), words.pop(place))
    return ' '.join(words[:MOST])
