"""
Rearrange four letters in several steps, and write them after each. Only the last line is scored, so a reward comes once
after a long chain. A sample problem, and a completion that earns the full reward:

    prompt:     b d a c : 1 reverse 2 swap 3 rotate >
    completion: 1 c a d b 2 a c d b 3 c d b a <eos>
"""
import random
from itertools import product
from typing import Callable, Dict, List, Optional, Sequence

from ding_common import Rule
from dizoo_llm.base import TASK_REGISTRY, Problem
from dizoo_llm.base.task import DividedTask, check_values

LETTERS = 'abcdef'
LENGTH = 4  # letters of a problem, all different, so that no step leaves them as they are
OPERATIONS: Dict[str, Callable[[List[str]], List[str]]] = dict(
    reverse=lambda line: line[::-1],
    rotate=lambda line: line[1:] + line[:1],
    swap=lambda line: line[1::-1] + line[2:],
)
EACH = 20  # training problems of a chain


@TASK_REGISTRY.register('rearrange')
class RearrangeTask(DividedTask):
    """
    A chain of steps is held out with all its letters: no training problem has the steps of an evaluated one. Reward
    part: ``right``, 1 if what follows the last number is the answer and nothing else.
    """

    weights = dict(right=1.0)
    return_part = 'right'
    must_end = True

    def __init__(self, steps: int = 6, eval_size: int = 128, seed: int = 0) -> None:
        """
        Arguments:
            - steps (:obj:`int`): Number of steps of each chain.
            - eval_size (:obj:`int`): Number of chains that are held out.
            - seed (:obj:`int`): Seed of the division and of the letters.
        """
        check_values(steps=(steps, Rule.integer(1, 8)), seed=(seed, Rule.integer(0)))
        draw, chains = random.Random(seed), list(product(OPERATIONS, repeat=steps))
        check_values(eval_size=(eval_size, Rule.integer(1, len(chains) - 1)))
        draw.shuffle(chains)
        self._held_out = [(draw.sample(LETTERS, LENGTH), chain) for chain in chains[:eval_size]]
        self._items = [(draw.sample(LETTERS, LENGTH), chain) for _ in range(EACH) for chain in chains[eval_size:]]
        self.words = [*LETTERS, *OPERATIONS, *map(str, range(1, steps + 1)), ':', '>', 'wrong']

    def problem(self, index: int) -> Problem:
        letters, chain = self._items[index]
        prompt = f"{' '.join(letters)} : {' '.join(f'{i} {name}' for i, name in enumerate(chain, 1))} >"
        answer = written(letters, chain).rpartition(f'{len(chain)} ')[2]
        return Problem(prompt, answer, dict(letters=letters, chain=chain))

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        words = completion.split()
        numbers = [i for i, word in enumerate(words) if word.isdigit()]
        return dict(right=float(words[numbers[-1] + 1 if numbers else 0:] == problem.answer.split()))

    def demonstration(self, problem: Problem) -> str:
        return written(**problem.metadata)

    def feedback(self, problem: Problem, completion: str) -> Optional[str]:
        """Numbers of the lines that do not follow from the line before them."""
        words, before, wrong = completion.split(), problem.metadata['letters'], []
        chain, size = problem.metadata['chain'], LENGTH + 1
        for i, name in enumerate(chain):
            line = words[i * size:] if i == len(chain) - 1 else words[i * size:(i + 1) * size]
            if line != [str(i + 1), *OPERATIONS[name](before)]:
                wrong.append(i + 1)
            before = line[1:]
        return ' '.join(['wrong', *map(str, wrong)]) if wrong else None


def written(letters: List[str], chain: Sequence[str], skipped: Sequence[int] = ()) -> str:
    """A completion, in which the lines of some steps repeat the line before."""
    text = []
    for i, name in enumerate(chain, 1):
        letters = letters if i in skipped else OPERATIONS[name](letters)
        text += [str(i), *letters]
    return ' '.join(text)
