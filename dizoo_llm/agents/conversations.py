"""
The texts of an episode as token ids. What was sampled and read is the record: a request that goes on from it is found
by comparing messages with those that were sent and answered, and no text is encoded twice.
"""
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ding_common import ConfigError, TaskError, describe
from dizoo_llm.text.encoder import Encoder

from .body import Asked, Choice, Message, Refused, Scored, messages_of
from .tool_calls import calls_of

MOST_OF_CHARACTER = 4  # tokens


@dataclass
class Trajectory:
    """One text of an episode."""
    number: int
    ids: List[int]
    record: Any  # what a request must begin with to go on with it: messages, or plain text or ids
    tools: List[Dict[str, Any]]
    prompt_length: int
    turns: int = 0
    turn: List[int] = field(default_factory=list)  # tokens of the last turn
    begun: List[Message] = field(default_factory=list)  # messages before the last turn


class Conversations:
    """The trajectories of an episode."""

    def __init__(self, encoder: Encoder, most_prompt: int, most_tokens: int) -> None:
        """``most_prompt`` and ``most_tokens``: tokens of a prompt, and of all that follows it."""
        self._encoder, self._most_prompt, self._most_tokens = encoder, most_prompt, most_tokens
        self.trajectories: List[Trajectory] = []

    def place(self, asked: Asked) -> Tuple[Trajectory, Any]:
        """The trajectory that a request continues, with what is new in it appended, and that in text. Raises
        ``Refused`` if its text cannot be encoded or is too long."""
        try:
            return self._chat(asked) if asked.messages is not None else self._plain(asked)
        except Refused:
            raise
        except (ConfigError, TaskError) as error:
            raise Refused(str(getattr(error, 'message', error))) from error
        except Exception as error:  # a template or a tokenizer may raise anything
            raise Refused(f'the request could not be encoded: {describe(error)}') from error

    def again(self, asked: Asked, trajectory: Trajectory) -> Trajectory:
        """A further trajectory for another choice of the same request."""
        ids = trajectory.ids[:len(trajectory.ids) - len(trajectory.turn)]
        record = asked.prompt if asked.messages is None else asked.messages
        return self._begin(ids, record, asked.tools, trajectory.prompt_length)  # with the room that it had there

    def _begin(self, ids: List[int], record: Any, tools: List[Dict[str, Any]], prompt_length: int) -> Trajectory:
        self.trajectories.append(Trajectory(len(self.trajectories), ids, record, tools, prompt_length))
        return self.trajectories[-1]

    def answered(
            self,
            asked: Asked,
            trajectory: Trajectory,
            tokens: List[int],
            cut: bool,
            number: int,
            logp: Optional[Sequence[float]] = None
    ) -> Choice:
        """Append a turn of the policy; ``number`` is that of the request in its episode, and ``logp`` begins with the
        log-probabilities of the tokens."""
        encoder, before = self._encoder, trajectory.ids
        scored = None
        if asked.logprobs:
            if logp is None:
                raise ValueError('logprobs: the action came without log-probabilities')
            scored = list(map(Scored, self._pieces(tokens, before), logp))
        trajectory.ids, trajectory.turn = [*before, *tokens], list(tokens)
        trajectory.turns += 1
        shown = _before_stop(encoder.turn_text(tokens, before), asked.stop)
        if asked.messages is None:
            prompt = asked.prompt
            trajectory.record = prompt + shown if isinstance(prompt, str) else list(trajectory.ids)
            return Choice(shown, cut, len(tokens), scored=scored)
        content, calls = shown, ()
        if asked.tools:
            template = encoder.tokenizer.chat_template
            content, calls = calls_of(shown, template, number, asked.tools, asked.any_arguments)
        choice = Choice(shown, cut, len(tokens), content, calls, scored)
        trajectory.begun = asked.messages
        trajectory.record = [*asked.messages, *messages_of([choice.message()])]
        return choice

    def _pieces(self, tokens: List[int], before: List[int]) -> List[str]:
        """What each token adds to the text. The last of several tokens of a character adds it."""
        pieces, begun = [], 0
        for i in range(1, len(tokens) + 1):
            last = max(begun - 1, 0)
            known, text = (
                self._encoder.decode(tokens[last:end], tokens[last - 1:last] or before) for end in (begun, i)
            )
            text = text[len(known):]
            whole = not text.endswith('\ufffd') or i - begun == MOST_OF_CHARACTER or i == len(tokens)
            pieces.append(text if whole else '')
            begun = i if whole else begun
        return pieces

    def _chat(self, asked: Asked) -> Tuple[Trajectory, Any]:
        if self._encoder.tokenizer.chat_template is None:
            raise Refused("env.tokenizer has no chat template: use client.completions.create(prompt='...')")
        known = self._known(lambda t: t.tools == asked.tools and isinstance(t.record, list), asked.messages)
        if known is None:
            ids = self._encoder.chat(asked.messages, asked.tools)
            return self._new(ids, asked.messages, asked.tools), asked.messages
        new = asked.messages[len(known.record):]
        self._append(known, self._encoder.after_chat(known.turn, known.begun, new, asked.tools))
        return known, new

    def _plain(self, asked: Asked) -> Tuple[Trajectory, Any]:
        prompt, kind = asked.prompt, type(asked.prompt)
        known = self._known(lambda t: isinstance(t.record, kind) and not t.begun, prompt)
        if known is None:
            ids = prompt if kind is list else self._encoder.text(prompt)
            return self._new(list(ids), prompt, []), prompt
        new = prompt[len(known.record):]
        self._append(known, list(new) if kind is list else self._encoder.after_plain(known.turn, new))
        return known, new

    def _known(self, fits: Any, given: Sequence) -> Optional[Trajectory]:
        """The answered trajectory with the longest record that something begins with, and goes on."""
        found = [t for t in self.trajectories if t.turn and fits(t) and len(given) > len(t.record)]
        found = [t for t in found if given[:len(t.record)] == t.record]
        return max(found, key=lambda t: len(t.record), default=None)

    def _new(self, ids: List[int], record: Any, tools: List[Dict[str, Any]]) -> Trajectory:
        if not 0 < len(ids) <= self._most_prompt:
            raise Refused(
                f'the prompt has {len(ids)} tokens, must have 1 to env.max_prompt_length = {self._most_prompt}',
                code='context_length_exceeded'
            )
        vocabulary = len(self._encoder.tokenizer)
        if max(ids) >= vocabulary:
            raise Refused(f'prompt: the token {max(ids)} is not among the {vocabulary} of this model', 'prompt')
        return self._begin(list(ids), record, tools, len(ids))

    def _append(self, trajectory: Trajectory, ids: List[int]) -> None:
        room = trajectory.prompt_length + self._most_tokens - len(trajectory.ids)
        if len(ids) >= room:
            raise Refused(
                f'the conversation goes on with {len(ids)} tokens and has room for {max(room - 1, 0)}: env.max_tokens '
                f'= {self._most_tokens} limits what follows its first prompt',
                code='context_length_exceeded'
            )
        trajectory.ids = [*trajectory.ids, *ids]
        trajectory.turn = []


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop string in it."""
    places = [text.index(string) for string in stop if string in text]
    return text[:min(places)] if places else text
