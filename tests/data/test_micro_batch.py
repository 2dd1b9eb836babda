import itertools
from types import SimpleNamespace

import pytest
import torch

from ding_common import ConfigError
from ding_common.processes.memory import memory_advice
from ding_grpo.data import micro_batch
from ding_grpo.data.micro_batch import AT_ONCE, AT_ONCE_ON_GPU, share_rows, split_rows, tokens_at_once
from tests.policies import gradient, make_batch, reward, sample_groups, token_policy, update, weights
from tests.processes import one_of


def batch(lengths, prompts, common=0):
    """Rows of these lengths; groups by name, each with a prompt of five tokens, after as many common ones."""
    weight = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).float()
    group = torch.tensor([ord(name) for name in prompts])
    of_name = {name: torch.cat([torch.zeros(common), torch.full((5, ), ord(name))]).long() for name in prompts}
    return make_batch(weight, group=group, prompts=[of_name[name] for name in prompts])


class TestSplit:

    @pytest.mark.parametrize(
        'most, expected',
        [
            (None, [[0, 1, 2, 3]]),
            (100, [[0, 1, 2, 3]]),
            (16, [[0, 1], [2, 3]]),  # 5 + 3 + 3; 5 + 2 + 5 + 3, for the prompt of row 2 is another than that of row 3
            (11, [[0, 1], [2], [3]]),
            (10, [[0], [1], [2], [3]]),
            (1, [[0], [1], [2], [3]]),  # a row is never divided
        ]
    )
    def test_prompts_once_and_last_tokens_not_at_all(self, most, expected):
        rows = split_rows(batch([4, 4, 3, 4], 'aabc'), most)
        assert [r.tolist() for r in rows] == expected

    def test_a_group_is_divided_only_if_it_does_not_fit(self):
        # groups of 8, 14 and 8 tokens: a part of 18 tokens has room for the first group and a row of the second
        rows = split_rows(batch([4] * 5, 'abbbc'), 18)
        assert [r.tolist() for r in rows] == [[0], [1, 2, 3], [4]]
        rows = split_rows(batch([4] * 5, 'abbbc'), 13)
        assert [r.tolist() for r in rows] == [[0], [1, 2], [3], [4]]

    def test_rows_that_do_not_count_cost_nothing(self):
        for most in (None, 8):
            assert [r.tolist() for r in split_rows(batch([0, 4, 0], 'aba'), most)] == [[1]]


class TestAuto:
    """What ``micro_batch_tokens='auto'`` chooses."""

    def test_parts_of_a_size_that_depends_on_the_device(self):
        whole = batch([1001] * 16, 'aaaabbbbccccdddd')
        assert tokens_at_once(whole, 'auto') == AT_ONCE and len(split_rows(whole, 'auto')) == 4
        on_gpu = SimpleNamespace(**vars(whole))
        on_gpu.weight = whole.weight.as_subclass(OnGPU)
        assert tokens_at_once(on_gpu, 'auto') == AT_ONCE_ON_GPU == 2 * AT_ONCE
        assert (tokens_at_once(whole, 100), tokens_at_once(whole, None)) == (100, None)

    def test_prompts_are_not_read_much_more_often(self):
        """Rows of a prompt that is as long as they are: two parts would read it twice, and a third more."""
        whole = batch([1001] * 7, 'aaaaaaa', common=1000)
        assert tokens_at_once(whole, 'auto') == 2 * AT_ONCE and len(split_rows(whole, 'auto')) == 1

    def test_nor_is_what_begins_several(self):
        """64 groups of 1,000 tokens after 4,000 that all have, 68,000 in all. Each part reads these again."""
        whole = batch([498] * 128, [name for name in map(chr, range(200, 264)) for _ in range(2)], common=4000)
        most = tokens_at_once(whole, 'auto')
        parts, smaller = (len(split_rows(whole, n)) for n in (most, most // 2))
        assert 1 < parts and (parts - 1) * 4000 <= 6800 < (smaller - 1) * 4000

    def test_steps_of_other_models_are_not_divided(self):
        assert tokens_at_once(make_batch(torch.ones(100, 100)), 'auto') is None

    def test_a_mini_batch_that_fits_is_bit_equal_to_an_undivided_one(self):
        auto, whole = (token_policy(micro_batch_tokens=most) for most in ('auto', None))
        update(auto), update(whole)
        assert torch.equal(weights(auto), weights(whole))

    def test_it_is_the_default_and_learns_as_the_whole(self, monkeypatch):
        monkeypatch.setattr(micro_batch, 'AT_ONCE', 40)
        learn = dict(learning_rate=1e-2, batch_groups=3, epoch_per_collect=2)
        found = []
        for policy in (token_policy(**learn), token_policy(micro_batch_tokens=None, **learn)):
            seen, read = [], policy.actor.read
            policy.actor.read = lambda *args, seen=seen, read=read: seen.append(len(args[1])) or read(*args)
            metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1, 2], reward=reward))
            found.append((weights(policy), max(seen), metrics['total_loss']))
        (parts, most, loss), (whole, rows, expected) = found
        assert most < rows == 12 and loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert torch.allclose(parts, whole, atol=2e-4)

    def test_pairs_of_a_preference_stay_together(self, monkeypatch):
        monkeypatch.setattr(micro_batch, 'AT_ONCE', 40)
        learn = dict(preference=dict(weight=1.), batch_groups=3, learning_rate=1e-2)
        policy, whole = (token_policy(micro_batch_tokens=most, **learn) for most in ('auto', None))
        update(policy, [0, 1, 2]), update(whole, [0, 1, 2])
        assert torch.equal(weights(policy), weights(whole))

    def test_a_surrogate_of_the_batch_reads_it_once_more_if_it_is_divided(self, monkeypatch):
        policy, calls = token_policy(loss='clip_cov', adv_method=None, batch_groups=3), []
        slope = policy.updater._slope
        policy.updater._slope = lambda batch: calls.append(len(batch)) or slope(batch)
        update(policy, [0, 1, 2])
        assert calls == []
        monkeypatch.setattr(micro_batch, 'AT_ONCE', 40)
        update(policy, [0, 1, 2])
        assert calls == [12]


class OnGPU(torch.Tensor):
    """Says that it is on a GPU."""
    is_cuda = True


class TestShare:

    @staticmethod
    def shares(batch, processes):
        found = []
        for rank in range(processes):
            with one_of(processes, rank):
                found.append(list(share_rows(batch)))
        return found

    @staticmethod
    def tokens(batch, rows):
        groups = {batch.group[row].item(): len(batch.prompts[row]) for row in rows}
        return int(sum(batch.weight[row].sum() - 1 for row in rows)) + sum(groups.values())

    @pytest.mark.parametrize('processes', [2, 3, 5])
    @pytest.mark.parametrize('seed', range(3))
    def test_no_other_blocks_have_a_smaller_largest(self, seed, processes):
        torch.manual_seed(seed)
        lengths = torch.randint(0, 9, (9, )).tolist()
        lengths[seed] = 30  # one long row
        whole = batch(lengths, 'aaabbcccd')
        found, counted = self.shares(whole, processes), [row for row in range(9) if lengths[row] > 0]
        assert sum(found, []) == counted  # each once, in order
        largest = min(
            max(self.tokens(whole, counted[a:b]) for a, b in zip((0, *cuts), (*cuts, len(counted))))
            for cuts in itertools.combinations_with_replacement(range(len(counted) + 1), processes - 1)
        )
        assert max(self.tokens(whole, rows) for rows in found) == largest

    def test_rows_are_divided_by_their_tokens(self):
        """By number, one of two processes read 165 tokens and the other 85."""
        whole = batch([61, 61, 21, 21, 21, 21, 21, 21], 'aaaaaaaa')
        assert self.shares(whole, 2) == [[0, 1], [2, 3, 4, 5, 6, 7]]
        assert [self.tokens(whole, rows) for rows in self.shares(whole, 2)] == [125, 125]

    def test_steps_of_other_models(self):
        weight = (torch.arange(500) < torch.tensor([500, 10, 10, 480]).unsqueeze(1)).float()
        assert self.shares(make_batch(weight), 2) == [[0], [1, 2, 3]]
        assert self.shares(make_batch(torch.ones(7, 1)), 3) == [[0, 1, 2], [3, 4, 5], [6]]

    def test_no_row_is_lost_where_prompts_of_a_group_alternate(self):
        """Blocks then read prompts several times: four blocks of the bound that was assumed did not have all rows."""
        lengths = [1, 1, 21, 6, 6, 1, 2, 2, 1, 6, 1, 2]
        long, *short = torch.zeros(200).long(), *(torch.full((400, ), i) for i in (1, 2, 3))
        weight = (torch.arange(21) < torch.tensor(lengths).unsqueeze(1)).float()
        whole = make_batch(weight, group=torch.zeros(12).long(), prompts=[long] * 3 + short * 3)
        assert sorted(sum(self.shares(whole, 4), [])) == list(range(12))

    def test_more_processes_than_rows(self):
        assert self.shares(batch([0, 3, 4], 'aab'), 4) == [[1], [2], [], []]
        assert self.shares(batch([0, 0], 'ab'), 2) == [[], []]


class TestUpdate:

    @pytest.mark.parametrize('loss', ['grpo', 'dapo', 'dr_grpo', 'gspo', 'clip_cov', 'real'])
    def test_parts_give_the_whole_update(self, loss):
        learn = dict(
            learning_rate=1e-2,
            epoch_per_collect=2,
            loss=loss,
            adv_method=None,
            kl=dict(beta=0.1),
            entropy=dict(weight=0.01)
        )
        found = []
        for most in (None, 40):
            policy = token_policy(collect=dict(top_k=9), micro_batch_tokens=most, **learn)
            data = sample_groups(policy, [0, 1, 2], reward=reward)
            data[1]['weight'][:, 2:] = 0  # uneven
            metrics = policy.learn_mode.forward(data)
            found.append((weights(policy), metrics))
        (whole, expected), (parts, metrics) = found
        assert torch.allclose(parts, whole, atol=2e-4)
        for name in ('total_loss', 'policy_loss', 'entropy', 'grad_norm', 'kl', 'ratio_max', 'clipfrac'):
            assert metrics[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-4), name

    @pytest.mark.parametrize(
        'loss, options',
        [('clip_cov', dict(share=0.3, low=0.)), ('kl_cov', dict(share=0.3)), ('m2po', dict(budget=0.01))]
    )
    def test_tokens_are_chosen_among_the_whole_mini_batch(self, loss, options):

        def learned(most, data=None):
            """The gradient of the mini-batch, and its groups."""
            learn = dict(loss=loss, adv_method=None, surrogate_options=options, learning_rate=1e-2, batch_groups=3)
            policy = token_policy(micro_batch_tokens=most, **learn)
            if data is None:
                data = sample_groups(policy, [0, 1, 2], reward=reward)
                for sample in data:
                    sample['logp_old'] -= 0.1  # the penalty of kl_cov needs a distance
            policy.learn_mode.forward(data)
            return gradient(policy), data

        whole, data = learned(None)
        assert torch.allclose(learned(40)[0], whole, atol=1e-5)
        of_each_group = sum(learned(None, [group])[0] for group in data) / 3
        assert not torch.allclose(of_each_group, whole, atol=1e-3)

    def test_no_part_reads_more(self):
        policy = token_policy(micro_batch_tokens=30, batch_groups=3)
        del policy.observers['watch']  # reads some rows once more
        seen, read = [], policy.actor.read
        policy.actor.read = lambda model, part, *args, **kwargs: seen.append(part) or read(model, part, *args, **kwargs)
        update(policy, [0, 1, 2])
        assert len(seen) > 3 and sum(len(part.weight) for part in seen) == 12
        for part in seen:
            prompts = {id(p): len(p) for p in part.prompts}
            assert sum(prompts.values()) + (part.weight.sum(1) - 1).sum() <= 30


class TestMemory:

    def test_advice_in_place_of_torchs_error(self):
        with pytest.raises(ConfigError, match='out of memory while learning .* try less'):
            with memory_advice('learning', 'try less'):
                torch.empty(2 ** 60)
        with pytest.raises(RuntimeError, match='size'):
            with memory_advice('learning', 'try less'):
                torch.ones(2) @ torch.ones(3)

    @pytest.mark.parametrize(
        'where, beta, key',
        [
            ('learning', 0., "micro_batch_tokens=1024, now 'auto'"),
            ('learning', 0.1, "micro_batch_tokens=1024, now 'auto'"),  # the reference is read first
            ('sampling', 0., 'env.collector_env_num, now 2'),
        ]
    )
    def test_names_the_key(self, where, beta, key):

        def ends(*args):
            raise torch.OutOfMemoryError('CUDA out of memory. Tried')

        policy = token_policy(kl=dict(beta=beta))
        data = sample_groups(policy, [0], reward=reward)
        policy.actor.read = policy.actor.sample = ends
        with pytest.raises(ConfigError, match=f'out of memory while {where} .*{key}'):
            if where == 'learning':
                policy.learn_mode.forward(data)
            else:
                policy.collect_mode.forward({0: None, 1: None}, row_keys={})
