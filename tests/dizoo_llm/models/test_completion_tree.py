"""Completions that share their beginnings: where they divide, and how probable each part is."""
import math

import pytest
import torch
from click.testing import CliRunner

from ding_common.hub.language_model import build_causal_lm
from dizoo_llm.models import completion_tree
from dizoo_llm.models.completion_tree import Branch, CompletionTree, lines
from dizoo_llm.play import main
from dizoo_llm.text.tokenizer import load_tokenizer
from tests.conftest import TINY
from tests.shipped import write_model_and_data


class Grower:
    """Trees of a random model of characters after 'hi', of up to 20 tokens. What it samples is replaced: each
    completion repeats another letter."""

    def __init__(self, monkeypatch):
        self.model, self.tokenizer = build_causal_lm('base', None, None, None, 'FOLDER'), load_tokenizer('base')
        self.asked, self.letters = [], iter('abcdefgh')
        monkeypatch.setattr(completion_tree, 'plain_generate', self.sample)

    def sample(self, model, prompts, room, ends, vocab_size, temperature):
        self.asked += [(self.tokenizer.decode(prompt), room) for prompt in prompts]
        return [self.ids(next(self.letters) * room) for _ in prompts]

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def grow(self, branches, above, temperature=1.):
        return CompletionTree(self.model, self.tokenizer, branches, above, 20, temperature).grow(self.ids('hi'))


@pytest.fixture
def grower(own_folder, monkeypatch):
    write_model_and_data(TINY)
    return Grower(monkeypatch)


def texts(branches):
    return [(branch.text, texts(branch.parts)) for branch in branches]


def test_rows_divide_eight_tokens_after_the_last_place_if_any_entropy_is_enough(grower):
    """A part goes on as it was sampled, and another one is sampled from its beginning."""
    assert texts(grower.grow([2, 2, 1], 0.)) == [
        (x * 8, [(y * 8, [(y * 4, [])]) for y in both]) for x, both in (('a', 'ac'), ('b', 'bd'))
    ]
    assert grower.asked == [('hi', 20), ('hi', 20), ('hi' + 'a' * 8, 12), ('hi' + 'b' * 8, 12)]


def test_the_place_is_before_the_first_token_of_enough_entropy(grower, monkeypatch):
    """Tokens 9 and 11 are drawn from two with the entropy log 2, all others are certain."""

    def next_tokens(model, before, ids, *_):
        found = torch.full((len(ids), 99), -math.inf)
        found[range(len(ids)), ids] = 0.
        for t in (9 + 2 - len(before), 11 + 2 - len(before)):
            if 0 <= t < len(ids):
                found[t, [ids[t], ids[t] - 1]] = -math.log(2)
        return found

    monkeypatch.setattr(completion_tree, 'next_tokens', next_tokens)
    tree = grower.grow([1, 2], 0.69)
    assert texts(tree) == [('a' * 9, [('a' * 11, []), ('b' * 11, [])])]
    assert tree[0].logp == 0 and tree[0].parts[1].logp == pytest.approx(-2 * math.log(2))
    assert texts(grower.grow([1, 2], 0.7)) == [('c' * 20, [])]


def test_log_probabilities_of_the_parts_are_those_of_the_whole(grower):
    branch, = grower.grow([1, 1], 0., temperature=0.5)
    ids = grower.ids('hi' + 'a' * 20)
    with torch.no_grad():
        logp = (grower.model(torch.tensor([ids])).logits[0, :, :len(grower.tokenizer)] / 0.5).log_softmax(-1)
    steps = [logp[t - 1, ids[t]].item() for t in range(2, 22)]
    assert branch.logp == pytest.approx(sum(steps[:8])) and branch.parts[0].logp == pytest.approx(sum(steps[8:]))


def test_a_tree_as_text():
    parts = [Branch(' b\nb', -2., [Branch('c', -3.25, [])]), Branch('\x1b', -4., [])]
    assert lines([Branch('a', -1., parts), Branch('d', 0., [])]
                 ) == ['+- -1.00 a', '|  +- -2.00 b\\nb', '|  |  +- -3.25 c', '|  +- -4.00 \\x1b', '+- 0.00 d']


@pytest.mark.parametrize(
    'options, told', [
        (['hi', '--tree', '2,2', '--temperature', '1', '--max-new-tokens', '12', '--above', '0'], None),
        (['hi', '--tree', '2,2'], '--tree needs a PROMPT and a --temperature above 0'),
        (['--tree', '2', '--temperature', '1', '--task', 'arithmetic'], '--tree needs a PROMPT'),
        (['hi', '--tree', '2,x', '--temperature', '1'], "'2,x' must be numbers of branches"),
        (['hi', '--above', '1'], '--above needs --tree'),
    ]
)
def test_the_command(own_folder, options, told):
    write_model_and_data(TINY)
    found = CliRunner().invoke(main, ['base', *options])
    assert found.exit_code == (0 if told is None else 2) and (told is None or told in found.output)
    if told is None:
        assert sum(line.startswith('+- -') for line in found.stdout.splitlines()) == 2
