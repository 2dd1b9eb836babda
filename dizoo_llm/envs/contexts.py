"""What a policy that teaches itself reads with a problem: a solution, and what the task says of a completion."""
from typing import List, Optional, Sequence, Tuple

import gymnasium

from ding_common import ConfigError, TaskError, describe
from dizoo_llm.base import Problem


class Contexts:
    """Texts of the training problems of a ``TokenEnv``, and prompts with them."""

    def __init__(self, env: gymnasium.Env, encoder: object) -> None:
        self._env, self._encoder = env, encoder

    def completion(self, ids: Sequence[int]) -> str:
        """The text of a completion, as its scorer gets it."""
        return self._encoder.turn_text(ids)

    def reference(self, index: int) -> str:
        """The right completion that the task demonstrates."""
        try:
            return self._env.task.demonstration(self._problem(index))
        except Exception as error:  # a user's task may raise anything
            raise ConfigError(f'env.task: demonstration raised {describe(error)} for problem {index}') from error

    def feedback(self, index: int, completion: str) -> Optional[str]:
        """What the task says of a completion; None if nothing."""
        name = type(self._env.task).__name__
        try:
            found = self._env.task.feedback(self._problem(index), completion)
        except Exception as error:  # as above
            raise TaskError(f'{name}.feedback raised {describe(error)}; completion: {completion!r:.200}') from error
        if found is not None and not isinstance(found, str):
            raise TaskError(f'{name}.feedback returned {found!r:.200}, must return a text or None')
        return found or None

    def check(self, text: str, place: str) -> None:
        """Raise a ``ConfigError`` if a text cannot be read there."""
        try:
            self._encoder.prompts([self._with(0, text, place)])
        except TaskError as error:
            raise ConfigError(f'policy.teacher.place = {place!r}: {error.message}') from error

    def prompts(self, contexts: Sequence[Tuple[int, str]], place: str) -> List[Optional[List[int]]]:
        """Token ids of the prompts of problems, each with a text: ``before`` or ``after`` the text of its last message,
        or as a further ``turn`` of the user, which needs a chat template. None for a text that has no token ids, such
        as one of a policy that has sampled an unknown token."""
        problems = [self._with(*context, place) for context in contexts]
        try:
            return self._encoder.prompts(problems)
        except (ConfigError, TaskError):
            return [self.prompts([context], place)[0] for context in contexts] if len(contexts) > 1 else [None]

    def _with(self, index: int, context: str, place: str) -> Problem:
        problem = self._problem(index)
        if place == 'turn':
            return problem._replace(prompt=[*problem.messages, dict(role='user', content=context)])

        def joined(text: str) -> str:
            return context + text if place == 'before' else text + context

        if isinstance(problem.prompt, str):
            return problem._replace(prompt=joined(problem.prompt))
        *earlier, last = problem.prompt
        return problem._replace(prompt=[*earlier, dict(last, content=joined(last['content']))])

    def _problem(self, index: int) -> Problem:
        return self._env.problems.checked_problem(index)
