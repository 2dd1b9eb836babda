"""The environment of an agent: the policy answers its requests, one at a time."""
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from ding_common import ConfigError, TaskError
from dizoo_llm.base import Problem, Task
from dizoo_llm.envs.token_env import TokenEnv
from dizoo_llm.text.stop import Stop

from .body import Choice, Refused, answer
from .conversations import Conversations, Trajectory
from .endpoint import Endpoint
from .episode import Episode, Request, Returned
from .recorded import Record, Recorded

MOST_WAITING = 64  # requests of a row that wait at a time


class AgentEnv(TokenEnv):
    """
    Each row is a run of the agent of the task. The observation is the text that its next request goes on with, and an
    action is the answer. A request that does not go on with an earlier text begins a new trajectory, which ``info``
    names. The reward arrives with the last answer, when the agent has returned; if it gave one to each answer, ``info``
    has them as ``rewards``. With ``record_requests``, ``info`` has the requests as ``record``.
    """

    together = True
    trajectories = True
    reads_logp = True

    def __init__(self, task: Union[Dict, Task], **options: Any) -> None:
        if options.get('max_prompt_length') is None:
            raise ConfigError('env.max_prompt_length = None: must be set, since an agent writes its prompts itself.')
        for key, told in (('system_prompt', 'messages'), ('stop', 'stop strings')):
            if options.get(key):
                raise ConfigError(f'env.{key} = {options[key]!r:.80}: an agent writes its {told} itself. Remove it.')
        super().__init__(task, **options)
        self._records = options.get('record_requests', False) and not self.evaluation
        self._endpoint: Optional[Endpoint] = None
        self._episode: Union[Episode, Recorded, None] = None
        self._begun: Optional[int] = None  # index of the problem whose agent runs already
        self._delivered: Optional[Dict[str, Any]] = None

    @property
    def has_turns(self) -> bool:
        return True

    def _fitting(self, drops: bool) -> Sequence[int]:
        return range(len(self.task.evaluation() if self.evaluation else self.task))

    def begin_reset(self, index: int, recorded: Optional[List[Dict[str, Any]]] = None) -> None:
        """Start the agent of a problem, which ``reset`` then waits for; or make recorded requests in its place."""
        self._end_episode()
        index %= len(self.problems)
        self._begun = None
        self.problem: Problem = self.problems.checked_problem(index)
        self._episode = self._agent() if recorded is None else Recorded(recorded)
        self._record = Record()
        self._begun = index

    def _agent(self) -> Episode:
        if self._endpoint is None or self._endpoint.dead:
            self._release()
            self._endpoint = Endpoint.acquire(self.task.temperature)
        row = self.problem.metadata['row']
        return Episode(self._endpoint, self.task.run, row, self.task.seconds, MOST_WAITING, self.task.direct)

    def reset(self, *, seed: Optional[int] = None, options: Optional[Dict] = None) -> Tuple[np.ndarray, Dict]:
        """As ``TokenEnv.reset``. The agent has made its first request then, or it has ended."""
        super(TokenEnv, self).reset(seed=seed)
        index = self._index(options)
        if self._begun != index:
            self.begin_reset(index, (options or {}).get('recorded'))
        self.index, self._begun = index, None
        self._conversations = Conversations(self._encoder, self.max_prompt_length, self.max_tokens)
        self._request: Optional[Request] = None
        self._first: Optional[str] = None  # request, in text
        self._trajectory: Optional[Trajectory] = None
        self._choices: List[Choice] = []  # of the request, so far
        self._requests, self.own_length, self._cut = 0, 0, False
        self._turns: List[Dict[str, Any]] = []
        self._done = False
        self._await()
        return self._observe(), dict(index=index)

    def begin_step(self, action: Union[int, Sequence[int], np.ndarray]) -> None:
        """Give the answer to the agent, whose next request ``step`` then waits for. Without log-probabilities, a
        request for them fails."""
        given, logp = np.atleast_1d(np.asarray(action)), None
        if given.dtype.names is not None:
            given, logp = given['token'], given['logp'].tolist()
        tokens = self._token_ids(given)
        if self._trajectory is None:  # the agent has ended without a request
            self._delivered = dict(taken=1, turn=0, trajectory=0)
            return
        asked, trajectory = self._request.asked, self._trajectory
        tokens = tokens[:min(asked.most or self.max_new_tokens, self._room)]
        stop = Stop(self.tokenizer, self.eos_token_ids, asked.stop)
        tokens = tokens[:stop.first([], tokens)]
        cut = not stop.ends(tokens)
        choice = self._conversations.answered(asked, trajectory, tokens, cut, self._requests, logp)
        self._choices.append(choice)
        self._cut |= cut
        self.own_length += len(tokens)
        turn = dict(text=choice.text, cut=cut, reply='', reward=0., reward_parts={}, trajectory=trajectory.number)
        self._turns.append(turn)
        self._delivered = dict(taken=len(tokens), turn=trajectory.turns - 1, trajectory=trajectory.number)
        if len(self._choices) < asked.choices:
            self._trajectory = self._conversations.again(asked, trajectory)
            return
        length = len(trajectory.ids) - len(tokens)
        self._answer_request(self._request, answer(asked, self._requests, length, self._choices))
        self._request = None

    def step(self, action: Union[int, Sequence[int]]) -> Tuple[np.ndarray, float, bool, bool, Dict[str, Any]]:
        """As ``TokenEnv.step``: an action answers the request. ``info`` has ``trajectory``, the number of the text to
        which the answer belongs, and ``turn``, that of the answer in it."""
        if self._delivered is None:
            self.begin_step(action)
        info, self._delivered = self._delivered, None
        if self._request is None and self._episode.ended is None:
            self._await()
        if self._episode.ended is None:
            return self._observe(), 0., False, False, info
        reward, parts = self._reward(self._episode.ended)
        info.update(parts, request=self._first)
        self._end(info, not self._cut)
        return self._observe(), reward, not self._cut, self._cut, info

    def _await(self) -> None:
        """Wait for the next request that can be answered, or for the end. Others are refused at once."""
        while True:
            event = self._episode.next()
            if isinstance(event, Returned):
                return
            self._requests += 1
            try:
                if len(self._turns) + event.asked.choices > self.max_turns:
                    told = f'env.max_turns = {self.max_turns}: the episode has no more answers, n counts each'
                    raise Refused(told, code='max_turns')
                self._trajectory, new = self._conversations.place(event.asked)
            except Refused as error:
                self._cut = True
                self._answer_request(event, error)
                continue
            self._request, self._choices = event, []
            text = self._text(new)
            if self._turns:
                self._turns[-1]['reply'] = text
            self._first = text if self._first is None else self._first
            return

    def _answer_request(self, request: Request, body: Union[Dict[str, Any], Refused]) -> None:
        if self._records:
            self._record.add(request.asked, body)
        self._episode.answer(request, body)

    def _text(self, new: Any) -> str:
        """What is new in a request, text, ids or messages, as text. Calls of functions in messages are shown too."""
        if isinstance(new, str):
            return new
        if new and not isinstance(new[0], dict):
            return self._encoder.decode(new)
        calls = [[f" {call['function']}" for call in message.get('tool_calls', ())] for message in new]
        return '\n'.join(f"{m['role']}: {m['content']}{''.join(c)}" for m, c in zip(new, calls))

    def _reward(self, ended: Returned) -> Tuple[float, Dict[str, Any]]:
        """Reward and info of an episode whose agent has ended."""
        failed, parts = ended.failed, []
        if failed is None and not self._turns:
            failed = 'the agent returned without a request, so there is nothing to learn from'
        if failed is None:
            try:
                parts = self.task.parts_of(ended.value, self.problem, len(self._turns))
            except TaskError as error:
                failed = error.message
        info = self.scoring.episode(parts, failed)
        if self._records:
            info['record'] = [*self._record.entries, dict(parts=parts, failed=failed)]
        if info['failed']:
            return 0., info
        for turn, own in zip(reversed(self._turns), reversed(parts)):  # a single one is that of the last
            turn.update(reward=self.scoring.reward(own), reward_parts=own)
        if len(parts) > 1:
            info['rewards'] = [turn['reward'] for turn in self._turns]
        return self.scoring.reward(info['reward_parts']), info

    @property
    def _room(self) -> int:
        trajectory = self._trajectory
        return min(self.max_new_tokens, trajectory.prompt_length + self.max_tokens - len(trajectory.ids))

    def _row(self) -> List[int]:
        return [0] if self._trajectory is None else self._trajectory.ids

    def render(self) -> str:
        return '\n\n'.join(self._encoder.decode(each.ids) for each in self._conversations.trajectories)

    def _end_episode(self) -> None:
        if self._episode is not None and self._episode.ended is None:
            self._episode.cancel()
        self._episode = None

    def _release(self) -> None:
        if self._endpoint is not None:
            self._endpoint.release()
            self._endpoint = None

    def close(self) -> None:
        self._end_episode()
        self._release()
