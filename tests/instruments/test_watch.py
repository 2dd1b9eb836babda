"""What a policy's watch reads and when, and that it changes nothing that is trained."""
import pytest
import torch
from easydict import EasyDict

from ding_grpo.instruments import evidence, watch
from ding_grpo.instruments.history import History
from ding_grpo.instruments.watch import Watch
from ding_grpo.learn.observer import View
from dizoo_llm.envs import TokenEnv
from tests.same import same

from tests.policies import make_batch, make_policy, sample_groups

pytestmark = pytest.mark.unittest


def train(think_answer, updates=3, **learn):
    main, create = think_answer
    main.policy.learn.update(dict(learning_rate=1e-3), **learn)
    policy = make_policy(main, create)
    for update in range(updates):
        policy.learn_mode.forward(sample_groups(policy, [0, 1], collect=update, reward=lambda g, i: float(i % 2)))
    return policy


class Updater:
    optimizer_steps = 0

    def __init__(self, model):
        self.model = model

    def read(self, batch):
        return self.model(torch.ones(len(batch), 3)).detach()

    def read_with_entropy(self, batch):
        return self.read(batch), self.read(batch)


def watch_of(model, cfg):
    return Watch(View(cfg, None, model, Updater(model), None, None))


class TestNothingChanges:

    def test_weights_optimizer_and_random_numbers(self, think_answer, monkeypatch):

        def state():
            torch.manual_seed(5)
            policy = train(think_answer, beta=0.1)
            found = policy.learn_mode.state_dict()
            return {key: value for key, value in found.items() if key != 'watch'}, torch.rand(3)

        watched = state()
        monkeypatch.setattr(Watch, 'look', lambda self, batch: None)
        monkeypatch.setattr(Watch, 'after', lambda self, *args: None)
        same(watched, state())

    def test_running_means_dropout_and_modes(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
        model[2].eval()
        cfg = EasyDict(learn=dict(value_warmup=0))
        before, random = model[1].running_mean.clone(), torch.get_rng_state()
        batch = make_batch(torch.ones(4, 2), adv=torch.ones(4))
        assert watch_of(model, cfg).look(batch) is not None
        assert torch.equal(model[1].running_mean, before) and torch.equal(torch.get_rng_state(), random)
        assert [m.training for m in model] == [True, True, False] and model.training


class TestLook:

    def looks(self, update, rows=4, warmup=0, weight=1.0):
        model = torch.nn.Linear(3, 2)
        found = watch_of(model, EasyDict(learn=dict(value_warmup=warmup)))
        found.history = History(updates=update)
        return found.look(make_batch(torch.full((rows, 2), weight), group=torch.arange(rows) // 2))

    def test_the_first_ten_updates_and_every_twentieth(self):
        assert [n for n in range(41) if self.looks(n) is not None] == [*range(10), 20, 40]

    @pytest.mark.parametrize('rows, read', [(2, 2), (8, 4), (40, 10), (200, 32)])
    def test_a_quarter_of_the_rows_within_bounds(self, rows, read):
        assert self.looks(0, rows).batch.group.tolist() == [i // 2 for i in range(read)]

    def test_not_while_the_critic_learns_alone(self):
        assert self.looks(1, warmup=2) is None and self.looks(2, warmup=2) is not None

    def test_not_without_a_step_that_counts(self):
        assert self.looks(0, weight=0.0) is None and self.looks(0, rows=0) is None


class TestFound:

    def test_a_healthy_start(self, think_answer):
        history = train(think_answer).observers['watch'].history
        assert (history.updates, history.rows, len(history.looks)) == (3, 24, 3) and history.found == []
        # the advantages of the second half of a group are positive, and its rows have become more probable
        assert history.looks[-1]['follow'] > 0 and 0 < history.looks[-1]['moved'] < 1
        assert history.recent[-1]['sampler_gap_mean'] < 1e-5

    def test_a_reference_that_moves(self, think_answer, monkeypatch):
        policy = train(think_answer, updates=1, beta=0.1)
        assert policy.observers['watch'].history.found == []
        next(policy._learning.reference.copy.parameters()).data += 1e-7
        policy.learn_mode.forward(sample_groups(policy, [0, 1], collect=1))
        assert [f['cause'] for f in policy.observers['watch'].history.found] == ['drift']

    def test_a_reference_that_is_renewed(self, think_answer):
        policy = train(think_answer, updates=5, beta=0.1, ref_sync_freq=2, ref_sync_mixup=0.5)
        assert policy.observers['watch'].history.found == []

    def test_a_sign_error_goes_against_the_advantages(self, think_answer, monkeypatch):
        of_change = evidence.of_change
        flipped = lambda batch, *rest: of_change(make_batch(batch.weight, adv=-batch.adv), *rest)  # noqa: E731
        monkeypatch.setattr(watch, 'of_change', flipped)
        found = train(think_answer, updates=6).observers['watch'].history.found
        assert [f['cause'] for f in found] == ['against'] and found[0]['update'] == 5

    def test_a_cause_is_told_once_and_its_symptoms_never(self, think_answer):
        policy = train(think_answer, updates=1)
        policy.observers['watch']._tell('mask', dict(message=''))
        for update in range(1, 8):  # all rewards equal: no_success after the fifth of 20 rows, and equal groups
            policy.learn_mode.forward(sample_groups(policy, [0, 1], collect=update, reward=lambda g, i: 0.0))
        assert [f['cause'] for f in policy.observers['watch'].history.found] == ['mask']

    @pytest.mark.parametrize('learn, causes', [(dict(), ['no_success']), (dict(advantage='none', adv_method=None), [])])
    def test_a_reward_that_is_not_learned_from_is_no_cause(self, think_answer, learn, causes):
        main, create = think_answer
        main.policy.learn.update(dict(demonstrations=dict(share=0.5), learning_rate=1e-3), **learn)
        policy = make_policy(main, create, env=TokenEnv(max_new_tokens=10))
        policy.observers['watch'].probed([])
        for update in range(14):
            policy.learn_mode.forward(sample_groups(policy, [0, 1], collect=update, reward=lambda g, i: 0.0))
        assert [f['cause'] for f in policy.observers['watch'].history.found] == causes

    def test_groups_that_were_used_before_do_not_count(self, think_answer):
        main, create = think_answer
        policy = make_policy(main, create)
        groups = sample_groups(policy, [0, 1])
        policy.learn_mode.forward([dict(groups[0], use=2), dict(groups[1], use=1)])
        assert policy.observers['watch'].history.rows == 4
        policy.learn_mode.forward([dict(group, use=2) for group in groups])
        assert policy.observers['watch'].history.rows == 4 and policy.observers['watch'].history.updates == 2

    def test_the_state_goes_with_the_checkpoint(self, think_answer):
        policy = train(think_answer, updates=2)
        other = train(think_answer, updates=0)
        other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
        assert other.observers['watch'].history == policy.observers['watch'].history

    def test_a_checkpoint_of_an_older_version(self, think_answer):
        policy = train(think_answer, updates=1)
        state = policy.learn_mode.state_dict()
        del state['watch']
        policy.learn_mode.load_state_dict(state)
        assert policy.observers['watch'].history == History()
