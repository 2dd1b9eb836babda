"""
Guess a number. Each reply says whether the secret is higher or lower. A dialogue that earns the full reward, for the
secret 6:

    prompt:  guess
    turn 0:  4 <eos>      reply:  higher
    turn 1:  6 <eos>      reply:  right (the episode ends)

With numbers from 1 to 7 and three turns, halving finds every secret; a policy that does not read the replies finds at
most three of seven.
"""
from typing import Any, Dict, Sequence, Tuple

from ding_common import Rule
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Turn
from dizoo_llm.base.task import check_values


@TASK_REGISTRY.register('guess')
class GuessTask(MultiTurnTask):
    """
    Problem i has the secret i + 1. The first word of a turn is the guess; any other than a number is answered with
    ``lower``. Reward part: ``right``. The state for ``advantage='anchor'`` is the range that the replies leave.
    """

    weights = dict(right=1.0)

    def __init__(self, highest: int = 7, prompt: str = 'guess', examples: Sequence[int] = ()) -> None:
        """
        Arguments:
            - highest (:obj:`int`): The largest number, at least 2.
            - prompt (:obj:`str`): What the policy reads first. A pretrained model needs the rules.
            - examples (:obj:`Sequence[int]`): Secrets of demonstrated games that each prompt begins with.
        """
        known = range(1, highest + 1)
        secrets = Rule(f'a list of numbers from 1 to {highest}', lambda given: all(each in known for each in given))
        check_values(
            highest=(highest, Rule.integer(2)), prompt=(prompt, Rule('a text', bool)), examples=(examples, secrets)
        )
        self._highest, self._prompt = highest, prompt
        self.words = [*dict.fromkeys([*map(str, range(1, highest + 1)), *prompt.split(), 'higher', 'lower', 'right'])]
        self._shown = [message for secret in examples for message in self.dialogue(Problem(prompt, str(secret)))]

    def __len__(self) -> int:
        return self._highest

    def problem(self, index: int) -> Problem:
        return Problem(self._prompt, str(index + 1)).after(self._shown)

    def begin(self, problem: Problem, seed: int) -> Dict[str, Any]:
        return dict(low=1, high=self._highest)

    def respond(self, problem: Problem, state: Dict[str, Any], turn: Turn) -> Reply:
        secret = int(problem.answer)
        words = turn.text.split()
        guess = int(words[0]) if words and words[0] in self.words[:self._highest] else None
        if guess == secret:
            return Reply('right', dict(right=1.0), done=True)
        if guess is not None and guess < secret:
            state['low'] = max(state['low'], guess + 1)
            return Reply('higher', dict(right=0.0), anchor=(state['low'], state['high']))
        if guess is not None:
            state['high'] = min(state['high'], guess - 1)
        return Reply('lower', dict(right=0.0), anchor=(state['low'], state['high']))

    def demonstration(self, problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
        low, high = 1, self._highest
        for guess, told in turns:
            low, high = (int(guess) + 1, high) if told == 'higher' else (low, int(guess) - 1)
        return str((low + high) // 2)
