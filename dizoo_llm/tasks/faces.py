"""
Text faces of environments of gymnasium's ``toy_text``, for the task ``gym_text``. Their texts are short and made of few
words, so that a tiny model can learn the game. For a model that reads English, write a face that explains it.
"""
from typing import Any, Dict, List, Optional, Tuple, Type

import gymnasium


class Face:
    """Names squares, places and hands by words. A turn begins with the name of an action, or is invalid."""

    words: List[str]  # the first one begins the prompt
    actions: List[str]  # in gymnasium's order

    def prompt(self, obs: Any) -> str:
        return f'{self.words[0]} {self.text(obs)}'

    def text(self, obs: Any) -> str:
        raise NotImplementedError

    def action(self, text: str) -> Optional[int]:
        words = text.split()
        return self.actions.index(words[0]) if words and words[0] in self.actions else None


class Lake(Face):
    """FrozenLake. The text names the square, ``row1 column2``; nothing says where the holes are."""

    actions = ['left', 'down', 'right', 'up']

    def __init__(self, env: gymnasium.Env) -> None:
        rows, self._columns = env.unwrapped.desc.shape
        self.words = ['lake', *(f'row{i}' for i in range(rows)), *(f'column{i}' for i in range(self._columns))]
        self.words += self.actions

    def text(self, obs: int) -> str:
        row, column = divmod(int(obs), self._columns)
        return f'row{row} column{column}'


class Taxi(Face):
    """Taxi: ``row0 column3 from red to blue``. A passenger in the taxi is ``from taxi``."""

    actions = ['south', 'north', 'east', 'west', 'pickup', 'dropoff']
    _places = ['red', 'green', 'yellow', 'blue', 'taxi']
    words = [
        'drive', 'from', 'to', *(f'row{i}' for i in range(5)), *(f'column{i}' for i in range(5)), *_places, *actions
    ]

    def text(self, obs: int) -> str:
        rest, goal = divmod(int(obs), 4)
        rest, passenger = divmod(rest, 5)
        row, column = divmod(rest, 5)
        return f'row{row} column{column} from {self._places[passenger]} to {self._places[goal]}'


class Blackjack(Face):
    """Blackjack: ``hand 14 hard dealer 10``. A hand with an ace that counts 11 is ``soft``; a dealer's ace is 1."""

    actions = ['stick', 'hit']
    words = ['cards', 'hand', 'dealer', 'hard', 'soft', *map(str, range(1, 32)), *actions]

    def text(self, obs: Tuple[int, int, int]) -> str:
        hand, dealer, ace = map(int, obs)
        return f"hand {hand} {'soft' if ace else 'hard'} dealer {dealer}"


FACES: Dict[str, Type[Any]] = dict(FrozenLake=Lake, FrozenLake8x8=Lake, Taxi=Taxi, Blackjack=Blackjack)  # by id
