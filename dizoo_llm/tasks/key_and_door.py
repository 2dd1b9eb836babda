"""
Remember over turns: a key has a colour, and the door behind it asks for it. A dialogue that earns the full reward, for
the answer red:

    prompt:  room
    turn 0:  take <eos>   reply:  key red
    turn 1:  walk <eos>   reply:  door
    turn 2:  red <eos>    reply:  open (the episode ends)

A reply names the colour once, two turns before the door asks for it.
"""
from typing import Any, Dict, Sequence, Tuple

from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Turn

COLOURS = ['red', 'green', 'blue', 'white']


@TASK_REGISTRY.register('key_and_door')
class KeyAndDoorTask(MultiTurnTask):
    """
    The first word of a turn is the action; others than ``take`` in the room, ``walk`` with the key and a colour at the
    door change nothing. A wrong colour ends the episode. Reward parts: ``open`` (the right colour), and partial credit
    ``key`` and ``door`` for the way there. The state for ``advantage='anchor'`` is the place and the colour.
    """

    weights = dict(open=1.0, key=0.25, door=0.25)
    return_part = 'open'
    words = ['room', 'take', 'walk', 'key', 'door', 'open', 'shut', 'nothing', *COLOURS]

    def __len__(self) -> int:
        return len(COLOURS)

    def problem(self, index: int) -> Problem:
        return Problem('room', COLOURS[index])

    def begin(self, problem: Problem, seed: int) -> Dict[str, Any]:
        return dict(place='room')

    def respond(self, problem: Problem, state: Dict[str, Any], turn: Turn) -> Reply:
        place, words = state['place'], turn.text.split()
        action, parts = words[0] if words else '', dict.fromkeys(self.weights, 0.0)
        if place == 'door' and action in COLOURS:
            right = action == problem.answer
            return Reply('open' if right else 'shut', dict(parts, open=float(right)), done=True)
        text = 'nothing'
        if (place, action) == ('room', 'take'):
            state['place'], text, parts['key'] = 'key', f'key {problem.answer}', 1.0
        elif (place, action) == ('key', 'walk'):
            state['place'], text, parts['door'] = 'door', 'door', 1.0
        return Reply(text, parts, anchor=(state['place'], problem.answer))

    def demonstration(self, problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
        return ('take', 'walk', problem.answer)[len(turns)]
