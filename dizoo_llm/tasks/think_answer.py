"""
Answer in the format that a worked example shows. A sample problem, and a completion that earns the whole reward:

    prompt:     <think> 2 3 4 </think> <answer> 7 </answer> 1 5 8 3 4 18 10 12 20 11 <think>
    completion: 9 </think> <answer> 3 </answer> <eos>

Four questions of ten symbols each with one symbol as label; there is no rule behind the labels, they are learned by
trial. The task is that of a GRPO tutorial notebook, which differs in two points: it scores prompt and completion
together, so that the worked example's answer block counts as the policy's, and it takes a token's log-probability
from the logits of that token's own position instead of the one before.
"""
from typing import Dict

from dizoo_llm.rewards import answer_reward, format_reward

from .base import TASK_REGISTRY, Problem, Task

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
    Overview:
        See the module's docstring. Parts: ``answer`` (the label in an answer block) and ``format`` (the think tag is
        closed, one answer block follows; partial credit tag by tag, without which nothing is ever found).
    """

    weights = dict(answer=1.0, format=0.5)
    return_part = 'answer'
    words = [str(i) for i in range(25)] + ['<think>', '</think>', '<answer>', '</answer>']  # ids 0 to 28

    def __len__(self) -> int:
        return len(QUESTIONS)

    def problem(self, index: int) -> Problem:
        question, label = QUESTIONS[index]
        return Problem(prompt=f'{EXAMPLE} {question} <think>', answer=label)

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(answer=answer_reward(completion, problem.answer), format=format_reward(completion))
