"""Runs whose groups are trees."""
import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from ding.utils import deep_merge_dicts
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.act.kept_cache import KeptCache
from ding_grpo.act.trees import Trees, ends_sentence
from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import nodes, tree_advantage
from dizoo_llm import TASK_REGISTRY
from dizoo_llm.tasks import GuessTask
from tests.cases import long
from tests.pipelines.test_processes import TOKENS, one_and_two
from tests.runs import distance, each_update, metrics, state, train
from tests.shipped import small

pytestmark = pytest.mark.envtest
AT_TOKENS = dict(branches=[2, 2], at='tokens', tokens=[2, 5])
AT_TURNS = dict(branches=[2, 2], at='turns')
LEARN = dict(advantage='tree', adv_method='rloo')


def tree(config='think_answer_grpo', tree=AT_TOKENS, env={}, **policy):
    changes = dict(group_size=8, collect=dict(tree=tree), learn=LEARN)
    return small(config, env=dict(dict(collector_env_num=16), **env), policy=deep_merge_dicts(changes, policy))


@pytest.fixture
def seen(own_folder, monkeypatch):
    """Policy and groups of each update."""
    found = []
    each_update(monkeypatch, lambda _, policy, data: found.append((policy, copy.deepcopy(data))))
    return found


def said(text):
    """For ``tree.at``."""
    return len(text.split()) == 3


def fails(text):
    raise KeyError('x')


HERE = 'tests.pipelines.test_trees'


@TASK_REGISTRY.register('guess_and_be_misled')
class Misleads(GuessTask):
    """Answers in turn, whatever was guessed."""
    answers = itertools.cycle(['lower', 'higher'])

    def respond(self, *args):
        return super().respond(*args)._replace(text=next(self.answers))


class TestRun:

    @pytest.mark.parametrize(
        'how', [
            AT_TOKENS,
            dict(branches=[2], at='entropy', above=3.4, apart=1),
            dict(branches=[4], at=f'{HERE}:said', apart=1),
        ],
        ids=['tokens', 'entropy', 'function']
    )
    def test_rows_share_their_beginnings_and_learning_reads_them_as_they_were_sampled(self, seen, how):
        train(tree(tree=how), 2, learning_rate=1e-3)
        for policy, data in seen:
            batch = Batch.of(data)
            size, total = nodes(batch.reward.sum(1), batch.leader, batch.group)
            assert size[:, 0].unique().tolist() == [8 / (8 // torch.tensor(how['branches']).prod().item())]
            assert (size == 1).any()  # rows have divided
            expected = tree_advantage(batch.reward.sum(1), batch.leader, batch.group) * batch.weight
            assert torch.equal(policy._advantage.of(batch), expected)
        found = metrics()
        assert all(m['sampler_gap_max'] < 1e-4 for m in found)  # logp_old are those of the rows' own tokens

    def test_turns_before_a_place_are_played_again(self, seen):
        train(tree('guess_grpo', AT_TURNS), 2, learning_rate=1e-3)
        for _, data in seen:
            batch = Batch.of(data)
            for row in range(len(batch)):
                for t in range(int(batch.length[row])):
                    leader = (batch.row == batch.leader[row, t]) & (batch.group == batch.group[row])
                    assert torch.equal(batch.action[leader, :t + 1], batch.action[row:row + 1, :t + 1])
                    assert torch.equal(batch.logp_old[leader, t], batch.logp_old[row:row + 1, t])
            for turn, rows in ((0, 4), (1, 2), (2, 1)):
                size, _ = nodes(batch.reward.sum(1), batch.leader, batch.group)
                own = (batch.turn == turn) & (batch.weight != 0)
                assert size[own].unique().tolist() == [rows]
        assert all(m['sampler_gap_max'] < 1e-4 for m in metrics())

    def test_turns_that_rows_share_are_computed_once(self, seen, monkeypatch):
        begin, kept = KeptCache.begin, []
        monkeypatch.setattr(KeptCache, 'begin', lambda *args: kept.append(len(args[1])) or begin(*args))
        train(tree('guess_grpo', dict(branches=[2], at='turns')), 1)
        # rows of the last turn alone are lines that it keeps; evaluations have four
        assert len([rows for rows in kept if rows > 4]) == 1

    @pytest.mark.parametrize('config, how', [('think_answer_grpo', AT_TOKENS), ('guess_grpo', AT_TURNS)])
    def test_a_resumed_run_goes_on_bit_by_bit(self, seen, config, how):
        train(tree(config, how), 4, name='whole', learning_rate=1e-3)
        train(tree(config, how), 2, name='part', learning_rate=1e-3)
        train(tree(config, how), 4, name='part', learning_rate=1e-3, resume_training=True)
        assert distance(state(4, 'whole')['model'], state(4, 'part')['model']) == 0

    def test_while_the_policy_learns_and_with_extra_rows(self, seen):
        train(tree(env=dict(collector_env_num=24), collect=dict(max_staleness=1, extra_rows=4)), 3, learning_rate=1e-3)
        assert [m['staleness_max'] for m in metrics()] == [0, 1, 1]
        leaders = set()
        for _, data in seen:
            batch = Batch.of(data)
            assert len(batch) == 16
            leaders.update(batch.leader.unique().tolist())
            assert tree_advantage(batch.reward.sum(1), batch.leader, batch.group).isfinite().all()
        assert max(leaders) > 7  # of 12 rows

    @pytest.mark.parametrize(
        'config, how', [
            pytest.param('think_answer_grpo', AT_TOKENS, id='tokens'),
            long('guess_grpo', AT_TURNS, id='turns'),
        ]
    )
    def test_two_processes_have_the_weights_of_one(self, tmp_path, config, how):
        policy = dict(group_size=8, collect=dict(tree=how, groups=4), learn=dict(batch_groups=2))
        changes = deep_merge_dicts(TOKENS, dict(env=dict(collector_env_num=32), policy=policy))
        one, two = one_and_two(tmp_path, config, changes, 'serial_onpolicy', 3, **LEARN)
        assert distance(one.weights(3), two.weights(3)) < 1e-6

    def test_an_environment_that_answers_otherwise_is_told(self, seen):
        with pytest.raises(ConfigError, match=r'tree: the environment answered the same turn of the rows \[\d'):
            train(tree('guess_grpo', AT_TURNS, env=dict(task=dict(type='guess_and_be_misled'))), 1)


def test_a_group_that_begins_again_has_a_new_tree():
    trees = Trees(EasyDict(branches=[2], at='turns', tokens=[], above=1.0, apart=8))
    tokenizer, again = SimpleNamespace(decode=str), {3: (0, 5, 0, 1), 4: (0, 5, 1, 1)}

    def second_row(keys, prompt):
        """The leaders of the second row in a turn of two tokens."""
        branching = trees.branching([3, 4], keys, [torch.tensor(prompt)] * 2, tokenizer)
        branching.leaders(0, torch.arange(2), torch.ones(2).bool(), None, torch.zeros(2, 3))
        return branching.of_tokens(1, 2).tolist()

    for keys in ({3: (0, 5, 0), 4: (0, 5, 1)}, again):
        assert second_row(keys, [1]) == [0, 0]
        trees.forget([3])  # its row has ended; the other one goes on with the tree
        assert second_row(keys, [1, 2, 3]) == [1, 1]
        trees.forget([3, 4])


def of(**keys):
    return dict(collect=dict(tree=keys))


@pytest.mark.parametrize(
    'changes, message', [
        (dict(group_size=6), r'tree.branches = \[2, 2\]: needs policy.group_size .* = 6 to be a multiple of .* 4'),
        (dict(group_size=4), r'tree.branches = \[2, 2\]: .* and at least 8'),
        (dict(learn=dict(advantage='outcome')), "learn.advantage = 'outcome': with policy.collect.tree must be 'tree'"),
        (dict(learn=dict(adv_method='batch')), "adv_method = 'batch': with advantage 'tree' must be one of grpo"),
        (of(branches=[]), 'tree.tokens = .*only available with policy.collect.tree.branches'),
        (of(branches=[], tokens=[], at='tokens'), "learn.advantage = 'tree': needs"),
        (of(tokens=[3]), r'tree.tokens = \[3\]: must have as many numbers as branches \(2\)'),
        (of(tokens=[5, 2]), 'tree.tokens = .*ascending'),
        (of(branches=[1]), 'tree.branches = .*integers of at least 2'),
        (of(at='turns', tokens=[]), "tree.at = 'turns': needs env.max_turns above 1"),
        (of(at='words'), "tree.at = 'words': must be tokens, turns"),
        (of(above=2.0), "tree.above = 2.0: only available with policy.collect.tree.at"),
        (of(apart=2), 'tree.apart = 2: only available with other places'),
        (dict(collect=dict(engine=dict(type='vllm', url='http://x'))), 'tree.branches = .*not available with .*engine'),
        (of(at='no_module:f', tokens=[]), "tree.at = 'no_module:f': there is no module"),
        (of(at=f'{HERE}:fails', tokens=[], apart=1), 'the function failed .KeyError'),
    ]
)
def test_what_it_refuses(own_folder, changes, message):
    with pytest.raises(ConfigError, match=f'(?s){message}'):
        train(tree(**changes), 1)


def test_steps_have_no_tree(own_folder):
    main, create = small('cartpole_grpo', policy=dict(group_size=8, collect=dict(tree=AT_TURNS), learn=LEARN))
    with pytest.raises(ConfigError, match='tree.branches = .*only available with language models'):
        train((main, create), 1)


@pytest.mark.parametrize(
    'text, ends', [
        ('It is 3. ', True), ('It is 3.', False), ('"No!" ', True), ('3.5', False), ('First\n', True), ('', False),
        ('好。\n', True), ('so, ', False)
    ]
)
def test_ends_of_sentences(text, ends):
    assert ends_sentence(text) is ends
