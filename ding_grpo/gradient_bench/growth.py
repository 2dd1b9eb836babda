"""All trees (``policy.collect.tree``) of a world with their probabilities, or a sample of them."""
from itertools import chain
from math import comb, prod
from random import Random
from typing import Dict, Iterator, List, NamedTuple, Tuple, Union

import torch
from torch import Tensor

from ding_grpo.rl_utils import entropy
from ding_grpo.rollout import Node, Point, TreePlan

from .batches import multisets
from .world import END, World

Text = Tuple[int, ...]  # tokens
SAID = ('', 'a. ', *'bcdef')  # what a token is in a text: token 1 ends a sentence


class Branch(NamedTuple):
    """What rows share, and what they become where they divide."""
    tokens: Text
    parts: Tuple['Branch', ...] = ()  # of equal numbers of rows; none where the rows end

    @property
    def cost(self) -> int:
        """Number of tokens that are sampled."""
        return len(self.tokens) + sum(part.cost for part in self.parts)

    def rows(self, first: int, size: int) -> Iterator[Tuple[Text, Text]]:
        """The tokens of each row and the leader of each token, where ``first`` is the number of the first row in its
        group."""
        leader, own = (first, ) * len(self.tokens), size // max(len(self.parts), 1)
        if not self.parts:
            yield from ((self.tokens, leader) for _ in range(size))
        for number, part in enumerate(self.parts):
            for tokens, leaders in part.rows(first + number * own, own):
                yield self.tokens + tokens, leader + leaders

    def shuffled(self, random: Random) -> 'Branch':
        """The same with its branches in any order."""
        parts = [part.shuffled(random) for part in self.parts]
        return Branch(self.tokens, tuple(random.sample(parts, len(parts))))


Forms = Dict[Branch, float]  # with their probabilities


class TooMany(Exception):
    """There are more trees than may be enumerated."""


class Growth:
    """How one of the trees of a group is sampled, with one prompt: rows divide by a plan."""

    def __init__(self, logits: Tensor, length: int, plan: TreePlan) -> None:
        self._p, self._length, self._plan = logits.softmax(-1).tolist(), length, plan
        self.entropy: List[float] = entropy(logits).tolist()  # of the token after each last one
        self.size = prod(plan.branches)  # rows of a tree
        self._root = plan.begin(list(range(self.size)))[0]

    def all(self, most: int) -> Forms:
        """All of them, without regard to the order of branches. Raises ``TooMany`` if the branches at a place have more
        than ``most`` outcomes."""
        return self.grown(self._root, (), most)

    def draw(self, random: Random) -> Branch:
        """One of them, in the order that ``all`` gives to its branches."""
        return self.drawn(self._root, (), random)

    def grown(self, node: Node, before: Text, most: int) -> Forms:
        """What the rows of a node become after these tokens."""
        if self._ended(before):
            return {Branch(()): 1.}
        parts, found = self._divided(node, before), {}
        for token, p in enumerate(self._p[state(before)]):
            for rest, q in self.grown(parts[0], (*before, token), most).items():
                found[Branch((token, *rest.tokens), rest.parts)] = p * q
        if len(parts) == 1:
            return found
        return {Branch((), chosen): p for chosen, p in together(found, len(parts), most).items()}

    def drawn(self, node: Node, before: Text, random: Random) -> Branch:
        """One of ``grown``."""
        if self._ended(before):
            return Branch(())
        found, p = [], self._p[state(before)]
        for part in self._divided(node, before):
            token, = random.choices(range(len(p)), p)
            rest = self.drawn(part, (*before, token), random)
            found.append(Branch((token, *rest.tokens), rest.parts))
        return found[0] if len(found) == 1 else Branch((), tuple(sorted(found)))

    def _ended(self, before: Text) -> bool:
        return len(before) == self._length or before[-1:] == (END, )

    def _divided(self, node: Node, before: Text) -> List[Node]:
        """A node, or its parts if its next place is before the next token."""
        tokens = len(before)
        point = Point(
            node.level, tokens, tokens - node.last, 0, tokens == 0, lambda: self.entropy[state(before)],
            lambda: ''.join(SAID[token] for token in before)
        )
        if node.level == len(self._plan.branches) or not self._plan.place(point):
            return [node]
        return node.divided(self._plan.branches[node.level], tokens)


class ByWholeRow:
    """As ``Growth``, but a row is sampled to its end, and others branch where its entropy was largest, from its second
    token on. No ``TreePlan`` has such a place: it is found by what the row becomes."""

    def __init__(self, logits: Tensor, length: int, branches: int) -> None:
        self._rows, self._alone = Growth(logits, length, TreePlan((), bool)), Node([0], 0)
        self.size = branches  # rows of a tree

    def all(self, most: int) -> Forms:
        found: Forms = {}
        for row, p in self._rows.all(most).items():
            place = self._place(row)
            if place == len(row.tokens):
                found[row] = p
                continue
            rest = self._rows.grown(self._alone, row.tokens[:place], most)
            for others, q in together(rest, self.size - 1, most).items():
                tree = self._tree(row, place, list(others))
                found[tree] = found.get(tree, 0.) + p * q
        return found

    def draw(self, random: Random) -> Branch:
        row = self._rows.draw(random)
        place = self._place(row)
        if place == len(row.tokens):
            return row
        others = [self._rows.drawn(self._alone, row.tokens[:place], random) for _ in range(self.size - 1)]
        return self._tree(row, place, others)

    def _place(self, row: Branch) -> int:
        """Number of tokens before the place; all of a row of one token, which does not branch."""
        places = range(1, len(row.tokens))
        return max(places, key=lambda t: self._rows.entropy[state(row.tokens[:t])], default=len(row.tokens))

    @staticmethod
    def _tree(row: Branch, place: int, others: List[Branch]) -> Branch:
        """Sorted, because it makes no difference which was first."""
        return Branch(row.tokens[:place], tuple(sorted([Branch(row.tokens[place:]), *others])))


Growing = Union[Growth, ByWholeRow]


def state(before: Text) -> int:
    """The row of the policy for the token after these."""
    return before[-1] if before else 0


def together(forms: Forms, number: int, most: int) -> Dict[Tuple[Branch, ...], float]:
    """So many independent ones, without regard to their order."""
    if comb(len(forms) + number - 1, number) > most:
        raise TooMany
    names, p = list(forms), torch.tensor(list(forms.values()), dtype=torch.double)
    drawn, log_probability = multisets(p.log(), number)
    chosen = (tuple(names[i] for i in numbers) for numbers in drawn.tolist())
    return dict(zip(chosen, log_probability.exp().tolist()))


class Groups(NamedTuple):
    """K groups of B rows in trees of equal size."""
    row: Tensor  # (K, B): completion of each row
    leader: Tensor  # (K, B, S): see ``tree_advantage``
    tokens: Tensor  # (K, ): that are sampled
    probability: Tensor  # (K, ), sums to 1
    exact: bool  # whether these are all groups

    @classmethod
    def make(
            cls,
            world: World,
            growing: Growing,
            roots: int,
            most: int,
            generator: torch.Generator,
            extra: int = 0
    ) -> 'Groups':
        """Groups of so many trees: all if there are at most ``most``, otherwise a sample of ``most``. If the longest
        rows, ``extra`` of them, are to be dropped, a sample whose rows are in the order in which they are sampled."""
        try:
            found = together(growing.all(most), roots, most if extra == 0 else 0)
            groups, p, exact = list(found), list(found.values()), True
        except TooMany:
            random = Random(int(torch.randint(2 ** 62, (), generator=generator)))
            groups = [tuple(growing.draw(random).shuffled(random) for _ in range(roots)) for _ in range(most)]
            p, exact = [1 / most] * most, False
        trees = {tree: i for i, tree in enumerate(dict.fromkeys(chain(*groups)))}
        chosen = torch.tensor([[trees[tree] for tree in group] for group in groups])  # (K, roots)
        row, leader = _tensors(world, list(trees), growing.size)
        first = (torch.arange(roots) * growing.size).view(roots, 1, 1)
        leader = torch.where(leader[chosen] < 0, -1, leader[chosen] + first)  # (K, roots, size, S)
        cost = torch.tensor([tree.cost for tree in trees], dtype=torch.double)
        return cls(
            row[chosen].flatten(1), leader.flatten(1, 2), cost[chosen].sum(1), torch.tensor(p, dtype=torch.double),
            exact
        )

    def without_longest(self, extra: int) -> 'Groups':
        """What is left when the longest rows of each group, ``extra`` of them, are dropped, as
        ``policy.collect.extra_rows`` does; of rows of one length, the last ones. ``tokens`` still count them."""
        length = (self.leader >= 0).sum(2)  # (K, B)
        kept = length.argsort(dim=1, stable=True)[:, :length.shape[1] - extra].sort(dim=1).values
        step = kept.unsqueeze(2).expand(-1, -1, self.leader.shape[2])
        return self._replace(row=self.row.gather(1, kept), leader=self.leader.gather(1, step))


def _tensors(world: World, trees: List[Branch], size: int) -> Tuple[Tensor, Tensor]:
    """The completions of the rows of trees, (N, size), and the leaders of their tokens, (N, size, S)."""
    length = world.token.shape[1]
    number = {tuple(t[:int(n)]): i for i, (t, n) in enumerate(zip(world.token.tolist(), world.weight.sum(1)))}
    rows = [list(tree.rows(0, size)) for tree in trees]
    completions = [[number[tokens] for tokens, _ in of_tree] for of_tree in rows]
    leaders = [[[*own, *[-1] * (length - len(own))] for _, own in of_tree] for of_tree in rows]
    return torch.tensor(completions), torch.tensor(leaders)
