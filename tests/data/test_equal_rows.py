"""Rows that are equal are read once, and nothing else changes."""
import copy

import pytest
import torch

from ding_grpo.data.batch import Batch
from ding_grpo.data.equal_rows import merge_equal_rows
from ding_grpo.extras.value_loss import ValueLoss
from ding_grpo.model import CausalLM
from dizoo_llm.envs import TokenEnv
from tests.policies import make_policy, sample_dialogues, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_turn_masks import SETTINGS, Chatter


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


@pytest.mark.unittest
class TestMerge:

    def test_of_each_kind_one_row_is_kept(self, think_answer):
        think_answer[0].policy.group_size = 4
        policy = make_policy(*think_answer)
        samples = repeated(sample_groups(policy, [0, 1, 0]), [0, 1, 0, 0])
        batch = Batch.of(samples)
        assert len({tuple(row.tolist()) for row in batch.action}) == 6
        merged, kind = merge_equal_rows(batch)
        assert kind.tolist() == [0, 1, 0, 0, 2, 3, 2, 2, 4, 5, 4, 4] and len(merged) == 6
        for field in ('action', 'weight', 'turn', 'length'):
            assert torch.equal(getattr(merged, field)[kind], getattr(batch, field))
        # The third group has the first one's prompt. With the same tokens its rows are read with those of the first.
        batch.action[8:], batch.length[8:], batch.weight[8:] = batch.action[:4], batch.length[:4], batch.weight[:4]
        batch.turn[8:] = batch.turn[:4]
        assert merge_equal_rows(batch)[1].tolist() == [0, 1, 0, 0, 2, 3, 2, 2, 0, 1, 0, 0]

    @pytest.mark.parametrize('field', ['action', 'length', 'weight', 'turn', 'prompts', 'kept', 'kept_words'])
    def test_rows_that_differ_in_one_thing_are_both_kept(self, think_answer, field):
        main, create = think_answer
        main.policy.group_size = 4
        main.policy.collect.update({'kept': dict(top_k=4), 'kept_words': dict(top_p=0.9)}.get(field, {}))
        batch = Batch.of(repeated(sample_groups(make_policy(main, create), [0]), [0, 0, 0, 0]))
        assert len(merge_equal_rows(batch)[0]) == 1
        if field == 'prompts':
            batch.prompts[2] = batch.prompts[2][:-1]
        elif field == 'kept_words':
            batch.kept_words[2 * len(batch.kept_words) // 4] ^= 1 << 5
        else:
            x = getattr(batch, field)
            x[2] = 1 - x[2] if field == 'weight' else x[2] + 1 if field != 'length' else x[2] - 1
        assert merge_equal_rows(batch)[1].tolist() == [0, 0, 1, 0]

    def test_nothing_is_copied_where_all_rows_differ(self, think_answer):
        batch = Batch.of(sample_groups(make_policy(*think_answer), [0, 1]))
        assert merge_equal_rows(batch) == (batch, None)


@pytest.mark.unittest
class TestUpdate:

    @pytest.mark.parametrize(
        'learn, collect', [
            (dict(beta=0.1, entropy_weight=0.1, epoch_per_collect=2), {}),
            (dict(log_prob_fn='efficient_method'), {}),
            (dict(top_entropy=0.5, reduction='token'), dict(top_k=6)),
            (dict(micro_batch_tokens=40), dict(top_p=0.9, repetition_penalty=1.2)),
            (dict(advantage='gae', adv_method=None, value_norm=False), {}),
            (dict(adv_method='optimal_token_baseline'), {}),
            (dict(shadow=['dapo'], shadow_every=1, noise_every=1), {}),
        ],
        ids=str
    )
    def test_is_that_of_all_rows(self, think_answer, monkeypatch, learn, collect):
        main, create = think_answer
        main.policy.group_size = 6
        main.policy.learn.update(learning_rate=1e-3, batch_size=2, **learn)
        main.policy.collect.update(collect)
        samples = repeated(sample_groups(make_policy(main, create), [0, 1, 2, 3], reward=reward), [0, 1, 0, 3, 3, 3])
        weights, metrics, read = [], [], []
        completion_states = CausalLM.completion_states
        monkeypatch.setattr(
            CausalLM, 'completion_states',
            lambda self, prompts, *args: read.append(len(prompts.row)) or completion_states(self, prompts, *args)
        )
        prepare = ValueLoss.prepare  # reads all rows, equal or not
        monkeypatch.setattr(ValueLoss, 'prepare', lambda self, *args: (prepare(self, *args), read.clear())[0])
        for once in (True, False):
            if not once:
                all_read(monkeypatch)
            policy = make_policy(main, create)
            found = policy.learn_mode.forward(copy.deepcopy(samples))
            metrics.append({k: v for k, v in found.items() if 'second' not in k and 'memory' not in k})
            weights.append(vector(policy._model.parameters()))
            if once:
                few = read[:]
                read.clear()
        assert sum(few) < 0.7 * sum(read)
        assert (weights[0] - weights[1]).abs().max() < 2e-5
        assert metrics[0] == pytest.approx(metrics[1], rel=2e-3, abs=1e-5)

    def test_conversations(self, think_answer, monkeypatch):
        options, sampling = SETTINGS['top-k']
        main, create = think_answer
        main.policy.collect.update(sampling)
        main.policy.learn.update(adv_method='no_std', advantage='return_to_go_by_step', reduction='constant')
        env = TokenEnv(Chatter(), **options)
        policy = make_policy(main, create, env=env)
        samples = sample_dialogues(policy, env, 3)
        batch = Batch.of(repeated(samples, [0] * 3 + list(range(3, len(samples[0]['action'])))))
        with torch.no_grad():
            once = policy._actor.read(policy._model, batch)
            all_read(monkeypatch)
            each = policy._actor.read(policy._model, batch)
        own = batch.weight != 0
        assert own.sum() > 100
        for name in ('logp', 'entropy'):
            assert torch.allclose(getattr(once, name)[own], getattr(each, name)[own], atol=2e-6)
