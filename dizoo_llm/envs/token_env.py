from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import gymnasium
import numpy as np
from gymnasium import spaces
from transformers import PreTrainedTokenizerBase

from dizoo_llm.tasks import Problem, Task, create_task
from dizoo_llm.tokenizer import build_word_tokenizer, load_tokenizer
from ding_common import ConfigError, TaskError

NO_TOKEN = -1  # fills observations behind the last token; no vocabulary has it


class TokenSpec(NamedTuple):
    """
    Overview:
        What a policy must know of the token process: how a row ends and what must fit the model.
    """
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: Tuple[int, ...]
    vocab_size: int
    max_prompt_length: int
    max_new_tokens: int


class TokenEnv(gymnasium.Env):
    """
    Overview:
        The Markov decision process over tokens that a causal language model acts in. The observation is the prompt
        and the tokens so far, behind them -1; an action is one token, or several at once, of which those behind the
        first end-of-sequence token or the length limit are not taken. The reward comes with the last token.
    Interfaces:
        ``reset``, ``step``
    Property:
        ``observation_space``, ``action_space``, ``token_spec``
    """

    metadata = {'render_modes': []}

    def __init__(
            self,
            task: Union[str, Dict, Task] = 'think_answer',
            max_new_tokens: int = 16,
            tokenizer: Optional[Dict] = None,
            max_prompt_length: Optional[int] = None,
    ) -> None:
        """
        Overview:
            Build task and tokenizer.
        Arguments:
            - task (:obj:`Union[str, Dict, Task]`): A task, or the config of a registered one.
            - max_new_tokens (:obj:`int`): Length limit of a completion in tokens.
            - tokenizer (:obj:`Optional[Dict]`): ``dict(pretrained=folder or name)`` or ``dict(words=[...])``; None \
                takes the task's words.
            - max_prompt_length (:obj:`Optional[int]`): In tokens, a longer prompt is an error. None takes the \
                longest of the task's prompts, which are all encoded for that.
        Raises:
            - ConfigError: If an argument cannot be used.
        """
        self.task = task if isinstance(task, Task) else create_task(dict(type=task) if isinstance(task, str) else task)
        self.tokenizer = _create_tokenizer(tokenizer, self.task)
        self.max_new_tokens = max_new_tokens
        self.max_prompt_length = self._longest_prompt() if max_prompt_length is None else max_prompt_length
        self.eos_token_ids = (self.tokenizer.eos_token_id, )
        vocab_size = len(self.tokenizer)
        length = self.max_prompt_length + max_new_tokens
        self.observation_space = spaces.Box(NO_TOKEN, vocab_size - 1, (length, ), np.int64)
        self.action_space = spaces.Discrete(vocab_size)
        self._done = True

    @property
    def token_spec(self) -> TokenSpec:
        """What a policy must know of this environment."""
        return TokenSpec(
            self.tokenizer, self.eos_token_ids, int(self.action_space.n), self.max_prompt_length, self.max_new_tokens
        )

    def reset(self, *, seed: Optional[int] = None, options: Optional[Dict] = None) -> Tuple[np.ndarray, Dict]:
        """
        Overview:
            Start a problem: the same seed, the same problem.
        Arguments:
            - seed (:obj:`Optional[int]`): As in gymnasium.
            - options (:obj:`Optional[Dict]`): ``index`` chooses the problem (modulo the number of problems).
        Returns:
            - obs (:obj:`np.ndarray`): The prompt's ids, then -1.
            - info (:obj:`Dict`): ``index``, the problem's number.
        Shapes:
            - obs (:obj:`np.ndarray`): :math:`(N, )`, N = max_prompt_length + max_new_tokens
        Raises:
            - TaskError: If the task gives no problem, or one whose prompt is empty or too long.
        """
        super().reset(seed=seed)
        index = (options or {}).get('index')
        self.index = int(self.np_random.integers(len(self.task)) if index is None else index % len(self.task))
        self.problem: Problem = self.task.checked_problem(self.index)
        self._prompt: List[int] = self._encode(self.problem)
        if not 0 < len(self._prompt) <= self.max_prompt_length:
            raise TaskError(
                f'{type(self.task).__name__}: the prompt of problem {self.index} has {len(self._prompt)} tokens, must '
                f'have 1 to env.max_prompt_length = {self.max_prompt_length}: {self.problem.prompt!r}'
            )
        self._completion: List[int] = []
        self._done = False
        return self._observe(), dict(index=self.index)

    def step(self, action: Union[int, Sequence[int]]) -> Tuple[np.ndarray, float, bool, bool, Dict[str, Any]]:
        """
        Overview:
            Take one token or several.
        Arguments:
            - action (:obj:`Union[int, Sequence[int]]`): Token ids, at least one.
        Returns:
            - obs (:obj:`np.ndarray`): Prompt and completion so far, then -1.
            - reward (:obj:`float`): Weighted sum of the task's parts with the last token, before it 0.
            - terminated (:obj:`bool`): An end-of-sequence token was taken.
            - truncated (:obj:`bool`): The length limit was reached without one.
            - info (:obj:`Dict`): ``taken``, how many tokens of the action count; at the end also ``index``, \
                ``reward_parts``, ``return`` (the task's ``return_part``), ``prompt``, ``completion`` (texts), \
                ``terminated`` and ``truncated``.
        Shapes:
            - obs (:obj:`np.ndarray`): :math:`(N, )`
        Raises:
            - ValueError: If the action is empty or not of the vocabulary.
            - TaskError: If the task fails to score.
        """
        if self._done:
            raise gymnasium.error.ResetNeeded('the episode has ended: call reset before step')
        tokens = np.atleast_1d(np.asarray(action)).astype(np.int64).tolist()
        if not tokens or min(tokens) < 0 or max(tokens) >= self.action_space.n:
            raise ValueError(f'action {action}: must be one or several token ids in [0, {self.action_space.n})')
        taken = 0
        terminated = truncated = False
        while taken < len(tokens) and not (terminated or truncated):
            self._completion.append(tokens[taken])
            taken += 1
            terminated = self._completion[-1] in self.eos_token_ids
            truncated = not terminated and len(self._completion) == self.max_new_tokens
        info: Dict[str, Any] = dict(taken=taken)
        reward = 0.
        if terminated or truncated:
            self._done = True
            reward = self._score(info)
            info.update(terminated=terminated, truncated=truncated)
        return self._observe(), reward, terminated, truncated, info

    @property
    def completion(self) -> List[int]:
        """The tokens taken since the last reset."""
        return self._completion

    def _encode(self, problem: Problem) -> List[int]:
        return self.tokenizer.encode(problem.prompt, add_special_tokens=False)

    def _longest_prompt(self) -> int:
        return max(len(self._encode(self.task.checked_problem(i))) for i in range(len(self.task)))

    def _score(self, info: Dict[str, Any]) -> float:
        ended = self._completion[-1] in self.eos_token_ids
        # Only the end of sequence is left out: other special tokens that the policy wrote are part of what it wrote.
        text = self.tokenizer.decode(self._completion[:-1] if ended else self._completion, skip_special_tokens=False)
        parts = self.task.checked_score(self.problem, text)
        reward = sum(self.task.weights[name] * value for name, value in parts.items())
        info.update(
            index=self.index,
            reward_parts=parts,
            prompt=self.problem.prompt,
            completion=text,
        )
        info['return'] = reward if self.task.return_part is None else parts[self.task.return_part]
        return float(reward)

    def _observe(self) -> np.ndarray:
        obs = np.full(self.observation_space.shape, NO_TOKEN, dtype=np.int64)
        tokens = self._prompt + self._completion
        obs[:len(tokens)] = tokens
        return obs


def _create_tokenizer(cfg: Optional[Dict], task: Task) -> PreTrainedTokenizerBase:
    if cfg is None:
        if task.words is None:
            raise ConfigError(
                f'env.tokenizer = None: {type(task).__name__} names no words of its own; give '
                "dict(pretrained='folder') or dict(words=[...])."
            )
        return build_word_tokenizer(task.words)
    if set(cfg) == {'pretrained'}:
        return load_tokenizer(cfg['pretrained'])
    if set(cfg) == {'words'}:
        return build_word_tokenizer(cfg['words'])
    raise ConfigError(f"env.tokenizer = {dict(cfg)!r}: must be dict(pretrained='folder') or dict(words=[...]).")
