"""The environment over tokens, with gymnasium's interface."""
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_common import ConfigError, TaskError, check_config, import_name
from dizoo_llm.base import Problem, Reply, Task, Text, Turn, check_scorer, create_task
from dizoo_llm.text.encoder import Encoder
from dizoo_llm.text.stop import Stop

from .contexts import Contexts
from .demonstrations import Demonstrations
from .fitting import Problems, fitting_problems
from .options import ENV_OPTIONS, ENV_RULES
from .scoring import Ended, Scoring
from .spec import NO_TOKEN, TokenSpec


def create_env(task: Union[Dict, Task], **options: Any) -> 'TokenEnv':
    """The environment of a task, of the kind that the task names. Arguments as those of ``TokenEnv``."""
    task = task if isinstance(task, Task) else create_task(task)
    kind = TokenEnv if task.environment is None else import_name(task.environment, 'env.task')
    return kind(task=task, **options)


class TokenEnv(gymnasium.Env):
    """
    The token-level Markov decision process of a causal language model. The observation is the prompt and all tokens so
    far, padded with -1. An action is one token or several, of one turn. Tokens after the one that ends the turn, an
    end-of-sequence token or the last token of a stop string, are ignored, and so are tokens beyond the length limit. A
    ``Task`` has one turn, which it scores. A ``MultiTurnTask`` answers each turn: the reply is part of the next
    observation. The reward of a turn arrives with its last token.
    """

    metadata = {'render_modes': ['ansi']}
    render_mode = 'ansi'
    together = False  # whether resets and steps begin before the first one waits, see ``TogetherManager``
    trajectories = False  # whether an episode may have several texts
    reads_logp = False  # whether actions come with the log-probabilities of their tokens

    def __init__(
            self,
            task: Union[str, Dict, Task] = 'think_answer',
            *,
            evaluation: bool = False,
            kept: Optional[Sequence[int]] = None,
            **options: Any
    ) -> None:
        """
        Arguments:
            - task (:obj:`Union[str, Dict, Task]`): A task, the name of a registered one, or its config.
            - kept (:obj:`Optional[Sequence[int]]`): Indices of the problems to use, ``kept`` of another environment \
                that has measured the prompts. None measures them, see ``fitting_problems``.
            - options (:obj:`Any`): The other keys of the section ``env`` of a config, see ``ENV_OPTIONS``.
        """
        check_config(options, ENV_OPTIONS, ENV_RULES, 'env')
        options = {**ENV_OPTIONS, **options}
        self.task = task if isinstance(task, Task) else create_task(dict(type=task) if isinstance(task, str) else task)
        check_scorer(self.task)
        self.evaluation = evaluation
        for key in ('max_new_tokens', 'max_turns', 'max_reply_tokens'):
            setattr(self, key, options[key])
        self.max_tokens = self.max_turns * self.max_new_tokens + (self.max_turns - 1) * self.max_reply_tokens
        if options['max_tokens'] is not None:
            self.max_tokens = min(options['max_tokens'], self.max_tokens)
        self._check_turns(options)
        if options['record_requests'] and not self.trajectories:
            raise ConfigError(
                f'env.record_requests = True: is for agents. Rows of {type(self.task).__name__} have no requests. '
                'Remove it.'
            )
        self.scoring = Scoring(self.task, options, evaluation)
        self._encoder = Encoder(self.task, options)
        self.tokenizer, self.eos_token_ids = self._encoder.tokenizer, self._encoder.end_ids
        self.kept = self._fitting(options['overlong_prompts'] == 'drop') if kept is None else kept
        self.problems = Problems(self.task.evaluation() if evaluation else self.task, self.kept)
        self.max_prompt_length = self._encoder.max_prompt_length
        self.encode, self.encode_answer = self._encoder.prompt, self._encoder.answer
        self._stop = Stop(self.tokenizer, self.eos_token_ids, options['stop'])
        vocab_size = len(self.tokenizer)
        length = self.max_prompt_length + self.max_tokens
        self.observation_space = spaces.Box(NO_TOKEN, vocab_size - 1, (length, ), np.int64)
        self.action_space = spaces.Discrete(vocab_size)
        self._done = True
        self._scores = True

    def _fitting(self, drops: bool) -> Sequence[int]:
        """Indices of the problems to use."""
        return fitting_problems(self._encoder, self.task, self.evaluation, drops)

    def _check_turns(self, options: Dict[str, Any]) -> None:
        """Require that the options fit the number of turns of the task, and the task its number of turns."""
        name = type(self.task).__name__
        if not self.has_turns:
            if self.max_turns > 1:
                raise ConfigError(
                    f'env.max_turns = {self.max_turns}: {name} scores one turn and answers none. Set it to 1, or use a '
                    'MultiTurnTask.'
                )
            return
        if (self.task.most_turns or 1) > self.max_turns:
            raise ConfigError(
                f'env.max_turns = {self.max_turns}: env.task has problems of up to {self.task.most_turns} turns. Raise '
                'it, or lower max_turns of the part.'
            )
        if self.task.must_end:
            raise ConfigError(
                f'env.task: {name} has must_end = True, which is for tasks of one turn. Use turn.cut in respond.'
            )
        if self.task.rewards_tokens:
            raise ConfigError(
                f'env.task: {name} has token_rewards, which is for tasks of one turn. Give rewards of turns in respond.'
            )
        for key in ('reward_models', 'overlong_buffer'):
            if options[key]:
                raise ConfigError(
                    f'env.{key} = {options[key]!r:.80}: not available for {name}, a MultiTurnTask, which rewards each '
                    'turn. Remove it.'
                )

    @property
    def has_turns(self) -> bool:
        """Whether the task answers turns."""
        return self.task.has_turns

    @property
    def weights(self) -> Dict[str, float]:
        """The parts of the reward and their weights."""
        return self.scoring.weights

    @property
    def token_spec(self) -> TokenSpec:
        """The properties of this environment that a policy needs."""
        return TokenSpec(
            self.tokenizer, self.eos_token_ids, int(self.action_space.n), self.max_prompt_length, self.max_new_tokens,
            self.weights, self.max_turns, self.max_tokens, self._stop.ends if self._stop.strings else None,
            self.scoring.return_part, None if self.evaluation else Demonstrations(self), self.trajectories,
            self.reads_logp, None if self.evaluation else Contexts(self, self._encoder)
        )

    def reset(self, *, seed: Optional[int] = None, options: Optional[Dict] = None) -> Tuple[np.ndarray, Dict]:
        """
        Overview:
            Start a problem. The same seed selects the same problem and starts the same game.
        Arguments:
            - options (:obj:`Optional[Dict]`): ``index`` selects the problem (modulo the number of problems). \
                ``defer_score=True`` leaves the score of the completion to the caller, see ``step``.
        Returns:
            - obs (:obj:`np.ndarray`): The prompt's token ids, padded with -1.
        Shapes:
            - obs (:obj:`np.ndarray`): :math:`(N, )`, N = max_prompt_length + max_tokens
        Raises:
            - TaskError: If the task returns no valid problem, it cannot begin, or its prompt cannot be encoded, is \
                empty or is too long.
        """
        super().reset(seed=seed)
        self.index = self._index(options)
        self.problem: Problem = self.problems.checked_problem(self.index)
        try:
            self._prompt: List[int] = self.encode(self.problem)
        except ConfigError as error:
            raise TaskError(f'problem {self.index}: the prompt could not be encoded: {error}') from error
        self._tokens: List[int] = []  # after the prompt
        self._turn: List[int] = []  # the tokens of the turn so far
        self._turns: List[Dict[str, Any]] = []  # the turns before it
        self._replies: List[Text] = []  # what the task answered to them
        self.own_length = 0
        if self.has_turns:
            state = self.index if self.evaluation else int(self.np_random.integers(2 ** 31))
            self._state = self.task.checked_begin(self.problem, state)
            self._most_turns = self.task.turn_limit(self.problem) or self.max_turns
        self._done = False
        self._scores = not (options or {}).get('defer_score', False)
        return self._observe(), dict(index=self.index)

    def step(self, action: Union[int, Sequence[int]]) -> Tuple[np.ndarray, float, bool, bool, Dict[str, Any]]:
        """
        Overview:
            Append one or more tokens to the turn. If they end it, the task scores or answers it. A reply that does \
            not fit into the limits is dropped, and the last turn allowed is answered too: the reward counts in both \
            cases.
        Arguments:
            - action (:obj:`Union[int, Sequence[int]]`): Token ids, at least one.
        Returns:
            - obs (:obj:`np.ndarray`): Prompt and all tokens so far, padded with -1.
            - reward (:obj:`float`): Weighted sum of the reward parts at the last token of a turn, else 0.
            - terminated (:obj:`bool`): Whether the task ended the episode; for a task of one turn, whether the \
                completion ended before the length limit.
            - truncated (:obj:`bool`): Whether a limit ended the episode.
            - info (:obj:`Dict`): ``taken``, how many tokens of the action were used. For a ``MultiTurnTask`` also \
                ``turn``, the number of their turn, and ``anchor`` (``Reply.anchor``). At the end also ``index``, \
                ``kind``, ``reward_parts``, ``return`` (that of ``return_part``), ``prompt``, ``completion`` \
                (texts), ``failed`` (why the episode could not be scored, else None), ``terminated``, ``truncated`` \
                and, for a ``MultiTurnTask``, ``turns``: ``text``, ``cut``, ``reply`` and ``reward`` of each. With \
                ``defer_score``, ``unscored`` (an ``Ended``) is in place of ``reward_parts``, ``return`` and \
                ``failed``, and the reward is 0.
        Shapes:
            - obs (:obj:`np.ndarray`): :math:`(N, )`
        Raises:
            - ValueError: If the action is empty or a token id is not in the vocabulary.
        """
        if self._done:
            raise gymnasium.error.ResetNeeded('the episode has ended: call reset before step')
        tokens = self._token_ids(action)[:self._room]
        tokens = tokens[:self._stop.first(self._turn, tokens)]
        self._turn += tokens
        self._tokens += tokens
        self.own_length += len(tokens)
        info: Dict[str, Any] = dict(taken=len(tokens))
        if self.has_turns:
            info['turn'] = len(self._turns)
        ended = self._stop.ends(self._turn)
        if not ended and self._room > 0:
            return self._observe(), 0., False, False, info
        reward, terminated, truncated = self._answer(info, ended) if self.has_turns else self._score(info, ended)
        if terminated or truncated:
            self._end(info, terminated)
        return self._observe(), reward, terminated, truncated, info

    def _index(self, options: Optional[Dict]) -> int:
        """That of the problem with which an episode starts."""
        number, index = len(self.problems), (options or {}).get('index')
        return int(self.np_random.integers(number) if index is None else index % number)

    def _token_ids(self, action: Union[int, Sequence[int]]) -> List[int]:
        tokens = np.atleast_1d(np.asarray(action)).astype(np.int64).tolist()
        if not tokens or min(tokens) < 0 or max(tokens) >= self.action_space.n:
            raise ValueError(f'action {action}: must be one or more token ids in [0, {self.action_space.n})')
        return tokens

    def _end(self, info: Dict[str, Any], terminated: bool) -> None:
        """End the episode, and add to the info of its last step what each has."""
        self._done = True
        kind, prompt = str(self.problem.metadata.get('kind', '')), self.problem.text
        info.update(index=self.index, kind=kind, prompt=prompt, terminated=terminated, truncated=not terminated)
        if self.has_turns:
            completion = '\n'.join(f"{turn['text']} -> {turn['reply']}" for turn in self._turns)
            info.update(turns=self._turns, completion=completion)

    def render(self) -> str:
        """The prompt and the tokens after it, as text."""
        return self._encoder.decode(self._row())

    @property
    def turns(self) -> List[Tuple[str, str]]:
        """Text and reply of each turn that the task has answered."""
        return [(turn['text'], turn['reply']) for turn in self._turns]

    @property
    def _room(self) -> int:
        """Number of tokens that the turn may still have."""
        return min(self.max_new_tokens - len(self._turn), self.max_tokens - len(self._tokens))

    def _score(self, info: Dict[str, Any], ended: bool) -> Tuple[float, bool, bool]:
        """Score a completion, and add its entries to ``info``. Returns reward, terminated and truncated."""
        info['completion'] = text = self._text()
        row = Ended(self.index, text, ended, self.own_length, self._token_rewards(text))
        if not self._scores:
            info['unscored'] = row
            return 0., ended, not ended
        reward, outcome = self.scoring.outcome(self.scoring.score(self.problem, text), row)
        info.update(outcome)
        return reward, ended, not ended

    def _token_rewards(self, text: str) -> Union[List[float], str, None]:
        """Those of the completion's tokens; why they cannot be given; None for a task without them."""
        if not self.task.rewards_tokens:
            return None
        try:
            return self.task.checked_token_rewards(self.problem, text, self._pieces(text))
        except TaskError as error:
            return error.message

    def _pieces(self, text: str) -> List[str]:
        """The text that each token of a completion of one turn adds to it. A character of several tokens is that of its
        last one."""
        ends, before = [], self._prompt
        for n in range(1, len(self._turn) + 1):
            begun = self._encoder.decode(self._turn[:n], before).rstrip('\ufffd')
            ends.append(len(os.path.commonprefix([begun, text])))
        ends[-1] = len(text)
        starts = [0, *ends[:-1]]
        return [text[max(starts[:n + 1]):end] for n, end in enumerate(ends)]

    def _answer(self, info: Dict[str, Any], ended: bool) -> Tuple[float, bool, bool]:
        """As ``_score``, for a turn that the task answers."""
        text = self._text()
        turn = Turn(text, len(self._turns), not ended)
        ids, failed = None, None
        try:
            reply = self.task.checked_respond(self.problem, self._state, turn)
            wrong = self.scoring.not_finite(reply.parts)
            if wrong is not None:
                raise TaskError(wrong)
            if not reply.done and turn.number + 1 < self._most_turns:
                ids = self._encoder.reply(self.problem, reply.text, self._turn, self._replies, self.max_reply_tokens)
        except TaskError as error:
            reply, failed = Reply('', dict.fromkeys(self.task.weights), done=True), error.message
        reward = self.scoring.reward(reply.parts)
        told = Problem(reply.text).text[:self._encoder.most_chars(self.max_reply_tokens)]
        self._turns.append(dict(text=text, cut=turn.cut, reply=told, reward=reward, reward_parts=reply.parts))
        if ids is not None and len(self._tokens) + len(ids) < self.max_tokens:
            self._tokens += ids
            self._turn = []
            self._replies.append(reply.text)
            info['anchor'] = reply.anchor
            return reward, False, False
        info.update(self.scoring.episode([turn['reward_parts'] for turn in self._turns], failed))
        return reward, reply.done, not reply.done

    def _text(self) -> str:
        """The turn. Only its end-of-sequence token is removed: the task sees any other special token in it."""
        before = [*self._prompt, *self._tokens[:len(self._tokens) - len(self._turn)]]
        return self._encoder.turn_text(self._turn, before)

    def _row(self) -> List[int]:
        """The text so far."""
        return self._prompt + self._tokens

    def _observe(self) -> np.ndarray:
        obs = np.full(self.observation_space.shape, NO_TOKEN, dtype=np.int64)
        tokens = self._row()
        obs[:len(tokens)] = tokens
        return obs
