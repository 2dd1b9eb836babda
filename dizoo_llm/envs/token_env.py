from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import gymnasium
import numpy as np
from gymnasium import spaces
from transformers import PreTrainedTokenizerBase

from dizoo_llm.tasks import Problem, Task, create_task
from dizoo_llm.tasks.base import check_scorer
from dizoo_llm.tokenizer import (
    build_char_tokenizer, build_word_tokenizer, encode_prompt, encode_text, end_ids, load_tokenizer
)
from ding_common import ConfigError, TaskError

from .rewarded_task import add_reward_models
from .scoring import Ended, Scoring

NO_TOKEN = -1  # pads observations after the last token; never a token id
MOST_READ = 20_000  # problems at most when the longest prompt has to be found
MOST_FOUND = 32_768  # prompt tokens at most when max_prompt_length is None: it sets the length of observations
MOST_ENCODED = 1024  # prompts whose tokens are cached, since all environments of a group start with the same one
_ENCODED: Dict[Tuple, Tuple] = {}  # keeps a reference to the tokenizer, so that its id is not reused
_TOKENIZERS = "dict(pretrained='folder or name', gguf_file=None), dict(words=[...]) or dict(chars='...')"


class TokenSpec(NamedTuple):
    """
    Overview:
        The properties of a token environment that a policy needs: how a row ends, and the sizes that a model must fit.
    """
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: Tuple[int, ...]
    vocab_size: int
    max_prompt_length: int
    max_new_tokens: int
    reward_weights: Dict[str, float]


class TokenEnv(gymnasium.Env):
    """
    Overview:
        The token-level Markov decision process of a causal language model. The observation is the prompt and the
        completion so far, padded with -1. An action is one token or several. Tokens after the first end-of-sequence
        token or beyond the length limit are ignored. The reward arrives with the last token.
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
            evaluation: bool = False,
            chat: Optional[bool] = None,
            system_prompt: Optional[str] = None,
            chat_options: Dict[str, Any] = {},
            overlong_buffer: Optional[int] = None,
            overlong_weight: float = 1.0,
            reward_models: Sequence[Dict[str, Any]] = (),
            reward_weights: Dict[str, float] = {},
    ) -> None:
        """
        Overview:
            Build the task and the tokenizer.
        Arguments:
            - task (:obj:`Union[str, Dict, Task]`): A task, the name of a registered one, or its config.
            - max_new_tokens (:obj:`int`): Maximum completion length in tokens.
            - tokenizer (:obj:`Optional[Dict]`): ``dict(pretrained=folder or name)``, with ``gguf_file`` if the \
                tokenizer is in a GGUF file, ``dict(words=[...])`` or ``dict(chars='...')``. None uses the task's \
                words or characters.
            - max_prompt_length (:obj:`Optional[int]`): Maximum prompt length in tokens; a longer prompt is an error. \
                None encodes all prompts of the task, for training and evaluation, and uses the longest.
            - evaluation (:obj:`bool`): Whether to use the task's evaluation problems.
            - chat (:obj:`Optional[bool]`): Whether a text prompt becomes a user message in the tokenizer's chat \
                template. None applies the template if the tokenizer has one.
            - system_prompt (:obj:`Optional[str]`): System message at the start of every chat.
            - chat_options (:obj:`Dict[str, Any]`): Additional variables of the chat template.
            - overlong_buffer (:obj:`Optional[int]`): Number of tokens before the length limit over which the reward \
                part ``overlong`` falls from 0 to -1, equation 13 of https://arxiv.org/abs/2503.14476.
            - overlong_weight (:obj:`float`): Weight of ``overlong`` in the reward.
            - reward_models (:obj:`Sequence[Dict[str, Any]]`): Further parts of the reward, see \
                ``dizoo_llm/reward_model.py``.
            - reward_weights (:obj:`Dict[str, float]`): Weights of parts of the reward in place of the task's.
        Raises:
            - ConfigError: If an argument is invalid.
        """
        self.task = task if isinstance(task, Task) else create_task(dict(type=task) if isinstance(task, str) else task)
        check_scorer(self.task)
        self.task = add_reward_models(self.task, reward_models)
        self.tokenizer = _create_tokenizer(tokenizer, self.task)
        self.problems = self.task.evaluation() if evaluation else self.task
        self.max_new_tokens = max_new_tokens
        self._chat = (chat, system_prompt, chat_options)
        self.scoring = Scoring(self.task, max_new_tokens, overlong_buffer, overlong_weight, reward_weights)
        self.max_prompt_length = max_prompt_length
        if max_prompt_length is None:
            self.max_prompt_length = self._longest_prompt()
        self.eos_token_ids = end_ids(self.tokenizer)
        vocab_size = len(self.tokenizer)
        length = self.max_prompt_length + max_new_tokens
        self.observation_space = spaces.Box(NO_TOKEN, vocab_size - 1, (length, ), np.int64)
        self.action_space = spaces.Discrete(vocab_size)
        self._done = True
        self._scores = True

    @property
    def weights(self) -> Dict[str, float]:
        """The parts of the reward and their weights."""
        return self.scoring.weights

    @property
    def token_spec(self) -> TokenSpec:
        """The properties of this environment that a policy needs."""
        return TokenSpec(
            self.tokenizer, self.eos_token_ids, int(self.action_space.n), self.max_prompt_length, self.max_new_tokens,
            self.weights
        )

    def reset(self, *, seed: Optional[int] = None, options: Optional[Dict] = None) -> Tuple[np.ndarray, Dict]:
        """
        Overview:
            Start a problem. The same seed selects the same problem.
        Arguments:
            - seed (:obj:`Optional[int]`): As in gymnasium.
            - options (:obj:`Optional[Dict]`): ``index`` selects the problem (modulo the number of problems). \
                ``defer_score=True`` leaves the score of the completion to the caller, see ``step``.
        Returns:
            - obs (:obj:`np.ndarray`): The prompt's token ids, padded with -1.
            - info (:obj:`Dict`): ``index``, the index of the problem.
        Shapes:
            - obs (:obj:`np.ndarray`): :math:`(N, )`, N = max_prompt_length + max_new_tokens
        Raises:
            - TaskError: If the task returns no valid problem, or its prompt cannot be encoded, is empty or is too long.
        """
        super().reset(seed=seed)
        index = (options or {}).get('index')
        self.index = int(self.np_random.integers(len(self.problems)) if index is None else index % len(self.problems))
        self.problem: Problem = self.problems.checked_problem(self.index)
        try:
            self._prompt: List[int] = self.encode(self.problem)
        except ConfigError as error:
            raise TaskError(f'problem {self.index}: the prompt could not be encoded: {error}') from error
        self._completion: List[int] = []
        self._done = False
        self._scores = not (options or {}).get('defer_score', False)
        return self._observe(), dict(index=self.index)

    def step(self, action: Union[int, Sequence[int]]) -> Tuple[np.ndarray, float, bool, bool, Dict[str, Any]]:
        """
        Overview:
            Append one or more tokens to the completion.
        Arguments:
            - action (:obj:`Union[int, Sequence[int]]`): Token ids, at least one.
        Returns:
            - obs (:obj:`np.ndarray`): Prompt and completion so far, padded with -1.
            - reward (:obj:`float`): Weighted sum of the reward parts at the last token, 0 until then.
            - terminated (:obj:`bool`): Whether the completion ends with an end-of-sequence token.
            - truncated (:obj:`bool`): Whether it reached the length limit without one.
            - info (:obj:`Dict`): ``taken``, how many tokens of the action were used. At the end also ``index``, \
                ``kind``, ``reward_parts``, ``return`` (the task's ``return_part``), ``prompt``, ``completion`` \
                (texts), ``failed`` (why the completion could not be scored, else None), ``terminated`` and \
                ``truncated``. With ``defer_score``, ``unscored`` (an ``Ended``) is in place of ``reward_parts``, \
                ``return`` and ``failed``, and the reward is 0.
        Shapes:
            - obs (:obj:`np.ndarray`): :math:`(N, )`
        Raises:
            - ValueError: If the action is empty or a token id is not in the vocabulary.
        """
        if self._done:
            raise gymnasium.error.ResetNeeded('the episode has ended: call reset before step')
        tokens = np.atleast_1d(np.asarray(action)).astype(np.int64).tolist()
        if not tokens or min(tokens) < 0 or max(tokens) >= self.action_space.n:
            raise ValueError(f'action {action}: must be one or more token ids in [0, {self.action_space.n})')
        tokens = tokens[:self.max_new_tokens - len(self._completion)]
        taken = next((i for i, token in enumerate(tokens, 1) if token in self.eos_token_ids), len(tokens))
        self._completion += tokens[:taken]
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
        """The tokens of the completion so far."""
        return self._completion

    def encode(self, problem: Problem) -> List[int]:
        """
        Overview:
            Token ids of a problem's prompt, as in the observation of ``reset``.
        Raises:
            - ConfigError: If the tokenizer has no token for a part of it.
            - TaskError: If the chat template rejects it, or the prompt is empty or too long.
        """
        key = (id(self.tokenizer), repr(problem.prompt), repr(self._chat))
        if key not in _ENCODED:
            if len(_ENCODED) >= MOST_ENCODED:
                _ENCODED.pop(next(iter(_ENCODED)))
            try:
                ids = encode_prompt(self.tokenizer, problem.prompt, *self._chat)
            except ConfigError:
                raise
            except Exception as error:  # a chat template may raise anything for a problem's messages
                raise TaskError(f'a prompt could not be encoded: {error}; problem: {problem.text!r:.200}') from error
            _ENCODED[key] = (self.tokenizer, self._known(ids, problem.text))
        ids = _ENCODED[key][1]
        if not 0 < len(ids) <= (MOST_FOUND if self.max_prompt_length is None else self.max_prompt_length):
            told = f'env.max_prompt_length = {self.max_prompt_length}'
            allowed = told if self.max_prompt_length is not None else f'{MOST_FOUND} with {told}'
            raise TaskError(
                f'{type(self.task).__name__}: a prompt has {len(ids)} tokens, must have 1 to {allowed}; change the '
                f'limit or the prompt: {problem.text!r:.200}'
            )
        return list(ids)

    def encode_answer(self, text: str) -> List[int]:
        """
        Overview:
            Token ids of a completion, including the end-of-sequence token.
        Raises:
            - ConfigError: If the tokenizer has no token for a part of it, or it is longer than ``max_new_tokens``.
        """
        ids = self._known(encode_text(self.tokenizer, text), text)
        if len(ids) + 1 > self.max_new_tokens:
            raise ConfigError(
                f'env.max_new_tokens = {self.max_new_tokens}: the answer {text!r:.200} has {len(ids) + 1} tokens, '
                'including the end-of-sequence token. Raise it.'
            )
        return ids + [self.tokenizer.eos_token_id]

    def _known(self, ids: List[int], text: str) -> List[int]:
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids:
            lacking = {c for c in {*text.split(), *text} if self.tokenizer.convert_tokens_to_ids(c) == unknown}
            some = sorted(c for c in lacking if len(c) == 1) or sorted(lacking)
            raise ConfigError(f'env.tokenizer: it has no token for {some[:5]!r:.80} in {text!r:.200}.')
        return ids

    def _longest_prompt(self) -> int:
        parts = [self.task, self.task.evaluation()]
        number = sum(map(len, parts))
        if number > MOST_READ:
            raise ConfigError(
                f'env.max_prompt_length = None: the task has {number} problems; the longest prompt is searched for '
                f'only among at most {MOST_READ}. Set it to the length of the longest prompt in tokens.'
            )
        return max(len(self.encode(part.checked_problem(i))) for part in parts for i in range(len(part)))

    def _score(self, info: Dict[str, Any]) -> float:
        """The reward of the completion, and its entries in ``info``."""
        ended = self._completion[-1] in self.eos_token_ids
        # Only the end-of-sequence token is removed: the scorer sees any other special token that the policy wrote.
        text = self.tokenizer.decode(
            self._completion[:-1] if ended else self._completion,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False
        )
        info.update(
            index=self.index,
            kind=str(self.problem.metadata.get('kind', '')),
            prompt=self.problem.text,
            completion=text,
        )
        row = Ended(self.index, text, ended, len(self._completion))
        if not self._scores:
            info['unscored'] = row
            return 0.
        try:
            scored = self.task.checked_score(self.problem, text)
        except TaskError as error:
            scored = error
        reward, outcome = self.scoring.outcome(scored, row)
        info.update(outcome)
        return reward

    def _observe(self) -> np.ndarray:
        obs = np.full(self.observation_space.shape, NO_TOKEN, dtype=np.int64)
        tokens = self._prompt + self._completion
        obs[:len(tokens)] = tokens
        return obs


def _create_tokenizer(cfg: Optional[Dict], task: Task) -> PreTrainedTokenizerBase:
    if cfg is None:
        cfg = {key: getattr(task, key) for key in ('words', 'chars') if getattr(task, key) is not None}
        if len(cfg) != 1:
            raise ConfigError(
                f'env.tokenizer = None: {type(task).__name__} must define either words or chars for that; else set '
                f'{_TOKENIZERS}.'
            )
    kinds = dict(pretrained=str, words=(list, tuple), chars=str)
    cfg = dict(cfg)
    gguf_file = cfg.pop('gguf_file', None) if 'pretrained' in cfg else None
    (kind, value), *more = cfg.items() or [(None, None)]
    if more or kind not in kinds:
        raise ConfigError(f'env.tokenizer = {cfg!r:.200}: must be {_TOKENIZERS}.')
    if not isinstance(value, kinds[kind]) or not value:
        raise ConfigError(f'env.tokenizer.{kind} = {value!r:.200}: must be {_TOKENIZERS}.')
    return load_tokenizer(value, gguf_file) if kind == 'pretrained' else _make_once(kind, tuple(map(str, value)))


@lru_cache(maxsize=8)
def _make_once(kind: str, parts: Tuple[str, ...]) -> PreTrainedTokenizerBase:
    """One tokenizer per process, so that environments share the cache of encoded prompts."""
    return build_word_tokenizer(parts) if kind == 'words' else build_char_tokenizer(''.join(parts))
