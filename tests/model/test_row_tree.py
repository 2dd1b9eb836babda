"""Branches of rows with common beginnings: every row finds its tokens, and sees only those that precede them in it."""
import random

import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.model.read.prompts import PromptTree
from ding_grpo.model.read.row_tree import RowTree

from tests.model.helper import CPU


def check(prompts, rows, hidden=32):
    """Each row, found from its last token by what this sees of its branch."""
    tree = PromptTree.of(PromptBatch.of([torch.tensor(p) for p in prompts], CPU))
    length = torch.tensor([len(row) for row in rows])
    completion = torch.tensor([row + [99] * (int(length.max()) + 1 - len(row)) for row in rows])
    branches = RowTree.of(tree, completion, length, hidden)
    first = torch.tensor([0, *branches.length]).cumsum(0).tolist()
    assert first[-1] == len(branches.ids) == len(branches.position)
    assert branches.prompt == sorted(branches.prompt)
    for i, row in enumerate(rows):
        assert branches.place[i, 0] == -1
        places = branches.place[i, 1:1 + len(row)].tolist()
        assert branches.ids[places].tolist() == row
        assert (branches.place[i, len(row):] == (places[-1] if row else -1)).all()
        prompt = tree.row[i].item()
        assert branches.position[places].tolist() == list(range(tree.length[prompt], tree.length[prompt] + len(row)))
        if not row:
            continue
        branch = sum(n <= places[0] for n in first[1:])
        assert branches.prompt[branch] == prompt
        own = [place - first[branch] for place in places]
        for j, place in enumerate(own):
            mask = branches.seen[branch]
            seen = list(range(place + 1)) if mask is None else mask[place].nonzero()[0].tolist()
            assert seen == own[:j + 1]
    return branches


class TestBranches:

    def test_the_example(self):
        branches = check([[0]] * 3, [[1, 2, 3], [1, 2, 4, 5], [6, 7]])
        assert branches.ids.tolist() == [1, 2, 3, 4, 5, 6, 7] and branches.length == [5, 2]
        assert branches.seen[0].tolist()[3] == [True, True, False, True, False] and branches.seen[1] is None

    @pytest.mark.parametrize('seed', range(20))
    def test_random_rows(self, seed):
        draw = random.Random(seed)
        prompts = [[draw.randrange(3)] for _ in range(12)]
        check(prompts, [[draw.randrange(2) for _ in range(draw.randrange(6))] for _ in prompts])

    def test_long_rows_with_a_short_beginning_are_read_apart(self):
        """Their branch would have 16 times the pairs for one token less of each."""
        rows = [[0, *range(1000 * i, 1000 * i + 400)] for i in range(1, 17)]
        assert check([[0]] * 16, rows).length == [401] * 16

    def test_it_depends_on_the_model_what_a_beginning_saves(self):
        rows = [[*range(4), *range(100 * i, 100 * i + 40)] for i in range(1, 5)]
        assert check([[0]] * 4, rows, hidden=32).length == [44] * 4
        assert check([[0]] * 4, rows, hidden=576).length == [4 + 4 * 40]

    def test_a_long_beginning_is_read_once(self):
        rows = [[*range(60), 100 + i] for i in range(16)]
        assert check([[0]] * 16, rows).length == [76]
