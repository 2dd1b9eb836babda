"""Rows that are equal are read once, and nothing else changes."""
import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ding_grpo.data.batch import Batch
from ding_grpo.data.equal_rows import merge_equal_rows
from tests.model.helper import set_way
from tests.policies import reward, sample_groups, token_policy, weights


def repeated(samples, rows):
    """The samples with some rows in place of others."""
    samples = copy.deepcopy(samples)
    for sample in samples:
        if 'kept_words' in sample:
            words = sample['kept_words'].split(sample['kept_width'].sum(1).tolist())
            sample['kept_words'] = torch.cat([words[row] for row in rows])
        for key, value in sample.items():
            if torch.is_tensor(value) and value.dim() > 0 and key not in ('prompt', 'kept_words'):
                sample[key] = value[rows]
    return samples


def all_read(monkeypatch):
    monkeypatch.setattr('ding_grpo.act.token_actor.merge_equal_rows', lambda batch: (batch, None))


class TestMerge:

    def test_of_each_kind_one_row_is_kept(self):
        batch = Batch.of(repeated(sample_groups(token_policy(), [0, 1, 0]), [0, 1, 0, 0]))
        assert len({tuple(row.tolist()) for row in batch.action}) == 6
        merged, kind = merge_equal_rows(batch)
        assert kind.tolist() == [0, 1, 0, 0, 2, 3, 2, 2, 4, 5, 4, 4] and len(merged) == 6
        fields = 'action', 'weight', 'turn', 'length'
        assert all(torch.equal(getattr(merged, field)[kind], getattr(batch, field)) for field in fields)
        # The third group has the first one's prompt. With the same tokens its rows are read with those of the first.
        for field in fields:
            getattr(batch, field)[8:] = getattr(batch, field)[:4]
        assert merge_equal_rows(batch)[1].tolist() == [0, 1, 0, 0, 2, 3, 2, 2, 0, 1, 0, 0]

    @pytest.mark.parametrize('field', ['action', 'length', 'weight', 'turn', 'prompts', 'kept', 'kept_words'])
    def test_rows_that_differ_in_one_thing_are_both_kept(self, field):
        policy = token_policy(collect={'kept': dict(top_k=4), 'kept_words': dict(top_p=0.9)}.get(field, {}))
        batch = Batch.of(repeated(sample_groups(policy, [0]), [0, 0, 0, 0]))
        assert len(merge_equal_rows(batch)[0]) == 1
        if field == 'prompts':
            batch.prompts[2] = batch.prompts[2][:-1]
        elif field == 'kept_words':
            batch.kept_words[2 * len(batch.kept_words) // 4] ^= 1 << 5
        else:
            x = getattr(batch, field)
            x[2] = 1 - x[2] if field == 'weight' else x[2] + 1 if field != 'length' else x[2] - 1
        assert merge_equal_rows(batch)[1].tolist() == [0, 0, 1, 0]

        batch = Batch.of(sample_groups(policy))
        assert field in ('kept', 'kept_words') or merge_equal_rows(batch) == (batch, None)  # nothing is copied


@pytest.mark.parametrize(
    'way, learn, collect', [
        ('shared', dict(epoch_per_collect=2, kl=dict(beta=0.1), entropy=dict(weight=0.1)), {}),
        ('padded', dict(log_prob_fn='efficient_method', reduction='token', entropy=dict(top_share=0.5)), dict(top_k=6)),
        (
            'shared', dict(micro_batch_tokens=40
                           ), dict(top_p=0.9, processors=[dict(type='repetition_penalty', penalty=1.2)])
        ),
        ('padded', dict(advantage='gae', adv_method=None, critic=dict(value_norm=False)), {}),
        ('padded', dict(adv_method='optimal_token_baseline'), {}),
        ('padded', dict(instruments=dict(shadow=['dapo'], shadow_every=1, noise_every=1)), {}),
    ],
    ids=str
)
def test_an_update_is_that_of_all_rows(monkeypatch, way, learn, collect):
    policies = [token_policy(dict(group_size=6), collect, learning_rate=1e-3, batch_groups=2, **learn) for _ in '12']
    samples = repeated(sample_groups(policies[0], [0, 1, 2, 3], reward=reward), [0, 1, 0, 3, 3, 3])
    metrics, products = [], []
    for policy in policies:
        set_way(policy.model, way)  # equal beginnings are read once if it is shared
        with FlopCounterMode(display=False) as counter:
            found = policy.learn_mode.forward(copy.deepcopy(samples))
        metrics.append({k: v for k, v in found.items() if 'second' not in k and 'memory' not in k})
        products.append(counter.get_total_flops())
        all_read(monkeypatch)
    one, other = map(weights, policies)
    assert products[0] < (0.7 if way == 'padded' else 1.01) * products[1] and (one - other).abs().max() < 2e-5
    assert metrics[0] == pytest.approx(metrics[1], rel=2e-3, abs=1e-5)
