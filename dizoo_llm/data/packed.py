"""Problems in little memory."""
import copy
import pickle
from array import array
from typing import Sequence

from dizoo_llm.base import Problem


class Packed(Sequence[Problem]):
    """
    Problems as bytes. As objects, they would take several times as much memory, and forked processes would copy them
    one by one, because reading an object changes its count of references.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._begins, self._ends = array('Q'), array('Q')

    def append(self, problem: Problem) -> None:
        self._begins.append(len(self._bytes))
        self._bytes += pickle.dumps(tuple(problem))
        self._ends.append(len(self._bytes))

    def chosen(self, indices: Sequence[int]) -> 'Packed':
        """The problems at some indices, in their order. They share the memory of these."""
        other = copy.copy(self)
        other._begins = array('Q', [self._begins[i] for i in indices])
        other._ends = array('Q', [self._ends[i] for i in indices])
        return other

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, index: int) -> Problem:
        return Problem(*pickle.loads(self._bytes[self._begins[index]:self._ends[index]]))
