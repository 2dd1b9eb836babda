"""
Trees: rows of a group that are the same row until they divide. From there on they are sampled by themselves.

A place is found by what is before it, never by what a row becomes. So each row alone is a sample of the policy, as
without a tree, and the rows of other branches are independent of it, given what is before (``tree_advantage``).
"""
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils import entropy
from ding_grpo.rl_utils.on_device import on_device


class Point(NamedTuple):
    """What is known of a row before its next token."""
    level: int  # number of places before
    tokens: int  # of the row, without its prompt
    since: int  # tokens since the last place
    turn: int
    begins: bool  # whether the next token is the first of its turn
    entropy: Callable[[], float]  # of the next token's distribution, in nats
    text: Callable[[], str]  # of the row, without its prompt


Place = Callable[[Point], bool]


class TreePlan(NamedTuple):
    """How the rows of a group divide: at one place after another, into so many branches of equal size."""
    branches: Sequence[int]
    place: Place
    root: Optional[int] = None  # the row as which all begin; None: as many rows as there are branches for

    def begin(self, rows: List[int]) -> List['Node']:
        """The roots of a group."""
        if self.root is not None:
            return [Node(rows, self.root)]
        size = prod(self.branches)
        return [Node(rows[i:i + size], rows[i]) for i in range(0, len(rows), size)]


@dataclass
class Node:
    """Rows of a group that are the same row so far."""
    rows: List[int]  # numbers in the group
    leader: int  # the one that is sampled
    level: int = 0
    last: int = 0  # number of tokens before the last place

    def divided(self, number: int, tokens: int) -> List['Node']:
        size = max(len(self.rows) // number, 1)
        parts = [self.rows[i:i + size] for i in range(0, len(self.rows), size)]
        return [Node(part, part[0], self.level + 1, tokens) for part in parts]


@dataclass
class Tree:
    """The rows of a group, as they have divided so far."""
    plan: TreePlan
    nodes: List[Node]
    start: int  # tokens of the prompt
    turn: int = -1


class Branching:
    """Which of the B rows of a batch are the same, while each gets the tokens of a turn."""

    def __init__(
            self, trees: List[Tuple[Tree, Dict[int, int]]], numbers: List[int], prompts: List[Tensor], decode: Callable
    ) -> None:
        """``trees``: with the line of each row of the group. ``numbers``: of the rows in their groups."""
        self._trees, self._prompts, self._decode = trees, prompts, decode
        # of each row: (token, leader from there on)
        self._begun: List[List[Tuple[int, int]]] = [[(0, number)] for number in numbers]
        self.shared = False  # whether any rows are still the same
        for tree, lines in trees:
            for node in tree.nodes:
                self._note(node, lines, 0)

    def leaders(self, t: int, live: Tensor, running: Tensor, logit: Callable[[], Tensor], action: Tensor) -> Tensor:
        """Divide rows whose place is before token t. Returns for each of the rows ``live`` (b, ) the place among them
        of the row whose token it takes, (b, ). ``running`` (b, ): whether each still grows. ``logit`` gives the logits
        of their next token (b, V), and ``action`` (B, T) has the tokens so far."""
        rows, runs = live.tolist(), running.tolist()
        place = {row: i for i, row in enumerate(rows)}
        lead = list(range(len(rows)))
        entropies = cache(lambda: entropy(logit().unsqueeze(0))[0].tolist())
        self.shared = False
        for tree, lines in self._trees:
            grown: List[Node] = []
            for node in tree.nodes:
                at = place.get(lines.get(node.leader))
                if len(node.rows) == 1 or at is None or not runs[at]:
                    grown.append(node)
                    continue
                parts = self._divided(tree, node, lines, t, action, lambda: entropies()[at])  # noqa: B023
                for part in parts:
                    self.shared |= len(part.rows) > 1
                    for row in part.rows:
                        lead[place[lines[row]]] = place[lines[part.leader]]
                grown += parts
            tree.nodes = grown
        return on_device(lead, live.device)

    def _divided(
            self, tree: Tree, node: Node, lines: Dict[int, int], t: int, action: Tensor, entropy: Callable[[], float]
    ) -> List[Node]:
        """A node, or its parts if its next place is before token t."""
        line, level = lines[node.leader], node.level
        if level == len(tree.plan.branches):
            return [node]
        before = self._prompts[line][tree.start:].tolist()
        tokens = len(before) + t
        point = Point(
            level, tokens, tokens - node.last, tree.turn, t == 0, entropy,
            lambda: self._decode(before + action[line, :t].tolist())
        )
        if not tree.plan.place(point):
            return [node]
        parts = node.divided(tree.plan.branches[level], tokens)
        for part in parts:
            self._note(part, lines, t)
        return parts

    def of_tokens(self, row: int, length: int) -> Tensor:
        """The number in its group of the row that was sampled for each token of a row, (length, )."""
        begun = self._begun[row]
        places = torch.tensor([t for t, _ in begun])  # ascending; of equal ones the last counts
        which = torch.searchsorted(places, torch.arange(length), right=True) - 1
        return torch.tensor([leader for _, leader in begun])[which]

    def _note(self, node: Node, lines: Dict[int, int], t: int) -> None:
        for row in node.rows:
            if row in lines:
                self._begun[lines[row]].append((t, node.leader))
        self.shared |= len(node.rows) > 1
