"""
Answer in the format of a worked example. A sample problem, and a completion that earns the full reward:

    prompt:     <think> 2 3 4 </think> <answer> 7 </answer> 1 5 8 3 4 18 10 12 20 11 <think>
    completion: 9 </think> <answer> 3 </answer> <eos>

There are four questions of ten symbols, each with one symbol as label. The labels follow no rule; the policy learns
them by trial. The task comes from a GRPO tutorial notebook, which differs in two points:

1. It scores prompt and completion together, so that the answer block of the worked example counts as the policy's.
2. It reads a token's log-probability from the logits at the token's own position instead of the previous one.
"""
import copy
import random
from typing import Dict

from dizoo_llm.base import TASK_REGISTRY, Problem, Task
from dizoo_llm.rewards import answer_reward, format_reward, is_formatted

EXAMPLE = '<think> 2 3 4 </think> <answer> 7 </answer>'
QUESTIONS = [
    ('1 5 8 3 4 18 10 12 20 11', '3'),
    ('6 9 13 7 4 21 10 15 4 23', '7'),
    ('3 5 14 6 10 20 4 9 10 15', '12'),
    ('6 19 17 5 16 21 10 20 13 19', '4'),
]


@TASK_REGISTRY.register('think_answer')
class ThinkAnswerTask(Task):
    """
    Reward parts: ``answer`` (the label in an answer block), ``format`` (partial credit for each tag in its place,
    without which the policy never finds the format) and ``solved`` (the right answer, nothing but thoughts and one
    answer block, and the end of the sequence: otherwise a policy fills the length limit with thoughts, and a shorter
    one would first lose reward).
    """

    weights = dict(answer=1.0, format=0.5, solved=0.5)
    return_part = 'solved'
    must_end = True
    words = [str(i) for i in range(25)] + ['<think>', '</think>', '<answer>', '</answer>']  # ids 0 to 28

    def __len__(self) -> int:
        return len(QUESTIONS)

    def problem(self, index: int) -> Problem:
        question, label = QUESTIONS[index]
        return Problem(prompt=f'{EXAMPLE} {question} <think>', answer=label)

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        answer = answer_reward(completion, problem.answer)
        solved = answer == 1 and is_formatted(completion)
        return dict(answer=answer, format=format_reward(completion), solved=float(solved))

    def demonstration(self, problem: Problem) -> str:
        return f'{problem.answer} </think> <answer> {problem.answer} </answer>'


@TASK_REGISTRY.register('think_answer_reader')
class ReaderTask(ThinkAnswerTask):
    """
    Other questions with random labels, of which every second has its answer before the example. A model that learns
    them answers what it reads, and nothing about the four questions: the start of a policy that teaches itself.
    """

    _first = 0

    def __len__(self) -> int:
        return 4000

    def problem(self, index: int) -> Problem:
        draw = random.Random(self._first + index)
        label, *question = (str(draw.randrange(25)) for _ in range(11))
        problem = Problem(f"{EXAMPLE} {' '.join(question)} <think>", label)
        return problem._replace(prompt=f'{self.demonstration(problem)} {problem.prompt}') if index % 2 else problem

    def evaluation(self) -> 'ReaderTask':
        other = copy.copy(self)
        other._first = len(self)
        return other
