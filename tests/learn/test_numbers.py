"""Numbers that are not finite: steps are skipped and counted, and the run ends with their place."""
import copy
import math
import types

import pytest
import torch

from ding_common import NumericError
from ding_grpo.data.diagnose import diagnose
from ding_grpo.learn.metrics import STEP_METRICS
from tests.policies import (
    DISCRETE, make_batch, reward, same_reward, sample_groups, sample_steps, state, step_policy, token_policy, update,
    weights
)
from tests.same import same

NAN, INF = float('nan'), float('inf')
ROW = 2  # of group 1: where a number is made wrong

# Each makes one number of group 1 wrong, for as long as the policy is used or in the data.


def wrong_reward(policy, data, value=NAN):
    data[1]['reward'][ROW, 1] = value


def infinite_reward(policy, data):
    wrong_reward(policy, data, INF)


def wrong_advantage(policy, data, value=NAN):
    of = policy.advantage.of

    def broken(batch):
        adv = of(batch)
        adv[4 + ROW] = value
        return adv

    policy.learning.bind(policy.spec, types.SimpleNamespace(of=broken, method='grpo'))


def large_advantage(policy, data):
    """The loss is out of range and its gradient is not, which is 0 where the ratio is clipped."""
    wrong_advantage(policy, data, 2e38)
    data[1]['logp_old'][ROW] -= 5 * data[1]['weight'][ROW]


def wrong_sampler(policy, data):
    data[1]['logp_old'][ROW, 1] = NAN


def wrong_reference(policy, data):
    with torch.no_grad():
        next(policy.reference.parameters()).fill_(NAN)


def wrong_policy(policy, data):
    read = policy.actor.read

    def broken(model, batch, *args, **kwargs):
        reading = read(model, batch, *args, **kwargs)
        if model is policy.model:
            row = (batch.logp_old == data[1]['logp_old'][ROW, 1]).any(1).nonzero().flatten()
            reading.logp.data[row, 1] = NAN
        return reading

    policy.actor.read = broken


def wrong_gradient(policy, data):
    policy.model.lm.model.norm.weight.register_hook(lambda g: torch.full_like(g, NAN))


def long_gradient(policy, data):
    for p in policy.model.parameters():
        p.register_hook(lambda g: torch.full_like(g, 1e30))  # the squares are out of range


def wrong_weight(policy, data):
    with torch.no_grad():
        policy.model.lm.model.layers[1].mlp.up_proj.weight[3, 5] = INF


def make_wrong(wrong=wrong_reward, **learn):
    """A policy after one good update, and groups with a wrong number in the second."""
    schedule = dict(type='linear', num_training_steps=50)
    policy = token_policy(**dict(dict(learning_rate=1e-2, lr_scheduler=schedule, kl=dict(beta=0.1)), **learn))
    update(policy)
    data = sample_groups(policy, reward=reward)
    wrong(policy, data)
    return policy, data


class TestSkip:

    @pytest.mark.parametrize(
        'wrong, options, named, place',
        [
            # the place of a number: group, row and column
            (wrong_reward, {}, 'a reward = nan', (1, ROW, 1)),
            (infinite_reward, dict(micro_batch_tokens=30), 'a reward = inf', (1, ROW, 1)),
            (wrong_advantage, dict(reduction='token'), 'an advantage (adv) = nan', (1, ROW, None)),
            (wrong_sampler, {}, 'a log-probability of the sampler (logp_old) = nan', (1, ROW, 1)),
            (wrong_reference, {}, 'a log-probability of the reference (logp_ref) = nan', (0, 0, 0)),
            (wrong_policy, dict(entropy=dict(weight=0.)), 'a log-probability of the policy (logp_new) = nan',
             (1, ROW, 1)),
            (large_advantage, {}, 'but a sum of them is NaN or infinite', None),
            (long_gradient, {}, 'norm of the gradient inf\nthe batch, the weights and the gradients are finite', None),
            (wrong_gradient, {}, 'norm of the gradient nan\ngradient of lm.model.norm.weight: 32 of 32', None),
        ]
    )  # yapf: disable
    def test_a_step_is_skipped_and_after_two_updates_the_run_ends_with_the_place(self, wrong, options, named, place):
        policy, data = make_wrong(wrong, max_bad_updates=2, **options)
        before = state(policy)
        metrics = policy.learn_mode.forward(data)
        same(state(policy), before)
        assert metrics['skipped_steps'] == 1 and metrics['optimizer_steps'] == 0
        assert 'total_loss' not in metrics  # there is no mean of nothing
        with pytest.raises(NumericError, match='^policy.learn.max_bad_updates = 2: that many updates') as caught:
            policy.learn_mode.forward(data)
        if place is not None:
            group, row, column = place
            token = '' if column is None else f', column {column}, token {data[group]["action"][row, column]}'
            prompt = ' '.join(str(i) for i in data[group]['prompt'][:8].tolist())
            named += f'\nin row {row}{token} of group {group}, sampled after update 0\n'
            named += f'its prompt begins with the tokens {prompt} ...'
        assert named in caught.value.message

    def test_a_good_update_follows(self):
        policy, data = make_wrong()
        before = weights(policy)
        policy.learn_mode.forward(data)
        metrics = update(policy)
        assert metrics['skipped_steps'] == 0 and metrics['optimizer_steps'] == 1 and math.isfinite(metrics['grad_norm'])
        assert not torch.equal(weights(policy), before)
        assert metrics['cur_lr'] == pytest.approx(1e-2 * 48 / 50)  # the schedule counts the skipped update too

    def test_other_mini_batches_of_the_update_are_learned(self):
        (policy, data), (alone, other) = (make_wrong(batch_groups=1, epoch_per_collect=2) for _ in range(2))
        metrics = policy.learn_mode.forward(data)
        assert metrics['skipped_steps'] == metrics['optimizer_steps'] == 2
        assert all(math.isfinite(metrics[name]) for name in STEP_METRICS if name in metrics)
        alone.learn_mode.forward(other[:1])
        assert torch.equal(weights(policy), weights(alone))

    @pytest.mark.parametrize('learn', [dict(batch_steps=3), dict(advantage='return_to_go')], ids=str)
    def test_steps_of_other_environments(self, learn):
        policy = step_policy(DISCRETE, learn=dict(learning_rate=1e-2, max_bad_updates=2, **learn))
        policy.learn_mode.forward([sample_steps(policy, [3, 2])])
        before = state(policy)
        bad = sample_steps(policy, [3, 2], reward=lambda row, step: NAN if row == step == 1 else 1., number=7)
        assert policy.learn_mode.forward([bad])['skipped_steps'] >= 1
        same(state(policy), before)
        action = bad['action'][1, 1].item()
        with pytest.raises(NumericError,
                           match=f'a reward = nan\nin row 1, column 1, action {action} of group 7, sampled after'):
            policy.learn_mode.forward([bad])


class TestEnd:

    def test_names_a_weight_that_is_wrong_too(self):
        policy, data = make_wrong(wrong_weight, max_bad_updates=1)
        weight = 'parameter lm.model.layers.1.mlp.up_proj.weight: 1 of 2048 numbers are NaN'
        with pytest.raises(NumericError, match=rf'logp_new\) = nan\n(.|\n)*{weight}'):
            policy.learn_mode.forward(data)

    def test_names_an_observation(self):
        policy = step_policy(DISCRETE, learn=dict(max_bad_updates=1))
        sample = sample_steps(policy, [3, 2])
        sample['obs'][4, 0] = INF  # the second step of the second row
        with pytest.raises(NumericError, match='infinite value: an observation\nin row 1, column 1, action'):
            policy.learn_mode.forward([sample])

    def test_observations_may_have_parts(self):
        weight = torch.tensor([[1., 1.], [1., 0.]])
        obs = dict(a=torch.zeros(3, 2), b=torch.tensor([0., 0., NAN]))
        batch = make_batch(weight, obs=obs, action=torch.tensor([[4, 5], [6, 0]]))
        batch.group_id, batch.collect_iter = torch.tensor([3, 3]), torch.tensor([9, 9])
        assert diagnose(batch, torch.nn.Linear(1, 1), lambda: weight) == [
            'the first NaN or infinite value: an observation',
            'in row 1, column 0, action 6 of group 3, sampled after update 9'
        ]

    def test_after_a_rows_end_any_number_may_follow(self):
        policy, data = make_wrong(wrong_gradient, max_bad_updates=1)
        for sample in data:
            sample['weight'][:, -1] = 0
            sample['logp_old'][:, -1] = NAN
        with pytest.raises(NumericError, match='gradient of lm.model.norm.weight'):
            policy.learn_mode.forward(data)

    def test_after_so_many_in_a_row_with_a_warning_at_the_first(self, capsys):
        """An update counts once, however many steps it skips."""
        policy, data = make_wrong(max_bad_updates=3, batch_groups=1, epoch_per_collect=3)
        assert policy.learn_mode.forward(data)['skipped_steps'] == 3
        first, *facts = capsys.readouterr().out.splitlines()
        assert first == 'update 1 had a step that was skipped, for its loss or gradient is not finite'
        assert facts[1] == '  the first NaN or infinite value: a reward = nan' and 'of group 1' in facts[2]
        policy.learn_mode.forward(data)
        assert capsys.readouterr().out == ''
        with pytest.raises(NumericError, match='max_bad_updates = 3: that many'):
            policy.learn_mode.forward(data)

    @pytest.mark.parametrize('of_good', [reward, same_reward], ids=['learned', 'empty'])
    def test_a_good_update_begins_a_new_row(self, capsys, of_good):
        policy, data = make_wrong(max_bad_updates=2, kl=dict(beta=0.))
        for _ in range(3):
            policy.learn_mode.forward(data)
            update(policy, reward=of_good)
        assert capsys.readouterr().out.count('was skipped') == 3


class TestLoad:

    def test_a_pretrained_model(self, tiny_model, tmp_path):
        with torch.no_grad():
            tiny_model.lm.model.embed_tokens.weight[3, 5] = NAN
        tiny_model.save_pretrained(str(tmp_path))
        with pytest.raises(NumericError, match='^policy.model: .*\nparameter lm.model.embed_tokens.weight: 1 of 1024'):
            token_policy(base=tmp_path)

    def test_a_checkpoint(self):
        policy = token_policy()
        whole = copy.deepcopy(policy.learn_mode.state_dict())
        whole['model']['lm.model.norm.weight'][0] = INF
        with pytest.raises(NumericError, match='^the checkpoint: .*\nparameter lm.model.norm.weight: 1 of 32 numbers'):
            policy.learn_mode.load_state_dict(whole)
