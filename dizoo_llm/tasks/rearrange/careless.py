"""The start of a policy for ``rearrange``: demonstrations of which a half has mistakes, and a half reads feedback."""
import random

from dizoo_llm.base import TASK_REGISTRY, Problem

from .steps import RearrangeTask, written

RIGHT = 0.45  # probability of a step without feedback


@TASK_REGISTRY.register('rearrange_careless')
class CarelessTask(RearrangeTask):
    """
    Every second problem has feedback before its prompt, as ``feedback`` says it, and the right completion. In those of
    the others each step is skipped with a probability of 0.55, independently, so that the likeliest one is wrong. A
    model that learns both can do each step, and does all of them if it reads feedback.
    """

    def problem(self, index: int) -> Problem:
        problem, draw = super().problem(index), random.Random(index)
        steps = range(1, len(problem.metadata['chain']) + 1)
        if index % 2:
            skipped = [i for i in steps if draw.random() > RIGHT]
            return problem._replace(metadata=dict(problem.metadata, skipped=skipped))
        named = sorted(draw.sample(steps, draw.choice(steps)))
        return problem._replace(prompt=f"wrong {' '.join(map(str, named))} {problem.prompt}")

    def demonstration(self, problem: Problem) -> str:
        return written(**problem.metadata)
