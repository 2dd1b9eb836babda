"""What the warm start trains on: right completions and dialogues as token ids."""
from typing import Dict, List, Optional, Tuple

import torch
from torch.utils.data import Dataset

from ding_common import ConfigError, describe, run_file
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import Problem


class Examples(Dataset):
    """
    Overview:
        Token ids of prompts, each followed by its right completion and an end-of-sequence token. The labels mask the
        prompt, so that only the completion contributes to the loss.
    """

    def __init__(self, env: TokenEnv, first: int, number: int, answers: Optional[str] = None) -> None:
        self._env, self._first, self._number = env, first, number
        self._answer = None
        if answers is not None:
            names = run_file(answers, 'main_config.train.answers')
            if not callable(names.get('answer')):
                raise ConfigError(f'main_config.train.answers = {answers!r}: must define a function answer.')
            self._answer = names['answer']
            if env.has_turns:
                raise ConfigError(
                    f'main_config.train.answers = {answers!r}: not available for {type(env.task).__name__}, which has '
                    'several turns. Implement its demonstration.'
                )
        elif env.has_turns:
            self._check_dialogue(first % len(env.task))
        else:
            self._check(env.task.checked_problem(first % len(env.task)))

    def _check(self, problem: Problem) -> None:
        """Check that the scorer rewards the demonstration of a problem."""
        text = self._env.task.demonstration(problem)
        scored = self._env.task.checked_score(problem, text)
        if sum(self._env.weights[name] * (value or 0) for name, value in scored.items()) <= 0:
            raise ConfigError(
                f"main_config.env.task: its scorer gives {scored} for its own demonstration {text!r:.200}, must give "
                "more than 0. Implement Task.demonstration, or set main_config.train.answers."
            )

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Dict[str, List[int]]:
        index = (self._first + index) % len(self._env.task)
        if self._env.has_turns:
            return self._play(index)[0]
        problem = self._env.task.checked_problem(index)
        text = self._env.task.demonstration(problem) if self._answer is None else self._answered(problem, index)
        prompt, answer = self._env.encode(problem), self._env.encode_answer(text)
        return dict(input_ids=prompt + answer, labels=[-100] * len(prompt) + answer)

    def _check_dialogue(self, index: int) -> None:
        """As ``_check``, for a task of several turns. Later demonstrations may be wrong."""
        _, reward = self._play(index)
        if reward <= 0:
            raise ConfigError(
                f'main_config.env.task: {type(self._env.task).__name__} gives its own demonstration of problem {index} '
                f'the reward {reward:g}, must give more than 0.'
            )

    def _play(self, index: int) -> Tuple[Dict[str, List[int]], float]:
        """The dialogue that a task demonstrates, and its reward. The labels mask prompt and replies."""
        env = self._env
        obs, _ = env.reset(seed=index, options=dict(index=index))
        ids, labels, total, done = obs[obs >= 0].tolist(), [], 0.0, False
        while not done:
            try:
                text = env.task.demonstration(env.problem, env.turns)
            except Exception as error:  # a user's task may raise anything
                raise ConfigError(f'main_config.env.task: demonstration raised {describe(error)}') from error
            turn = env.encode_answer(text)
            labels += [-100] * (len(ids) - len(labels)) + turn
            ids += turn
            obs, reward, terminated, truncated, _ = env.step(turn)
            total, done = total + reward, terminated or truncated
            if not done:
                ids = obs[obs >= 0].tolist()
        return dict(input_ids=ids, labels=labels), total

    def _answered(self, problem: Problem, index: int) -> str:
        try:
            text = self._answer(problem, index)
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                f'main_config.train.answers: answer(problem, {index}) raised {describe(error)}'
            ) from error
        if not isinstance(text, str):
            raise ConfigError(f'main_config.train.answers: answer(problem, {index}) = {text!r:.200}: must be a string.')
        return text


def collate(rows: List[Dict[str, List[int]]]) -> Dict[str, torch.Tensor]:
    """Pad rows on the right: ids and attention mask with 0, labels with -100."""
    longest = max(len(row['input_ids']) for row in rows)

    def padded(values: List[int], fill: int) -> List[int]:
        return values + [fill] * (longest - len(values))

    return dict(
        input_ids=torch.tensor([padded(row['input_ids'], 0) for row in rows]),
        attention_mask=torch.tensor([padded([1] * len(row['input_ids']), 0) for row in rows]),
        labels=torch.tensor([padded(row['labels'], -100) for row in rows]),
    )
