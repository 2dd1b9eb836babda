"""The learning rate of each update: of a warm-up's first, of updates without a step, of decays at their end."""
import warnings

import pytest
import torch
from transformers import get_scheduler

from ding_grpo.config.sections.update import SCHEDULES
from ding_grpo.config.schedule import Schedule
from tests.policies import resumed, same_reward, token_policy, update

SPECIFIC = dict(
    cosine_with_min_lr=dict(min_lr_rate=0.1),
    cosine_warmup_with_min_lr=dict(min_lr_rate=0.1),
    warmup_stable_decay=dict(num_decay_steps=5),
)


def options(kind, warmup=0, end=20):
    return dict(type=kind, num_warmup_steps=warmup, num_training_steps=end, specific=SPECIFIC.get(kind, {}))


def rates(schedule, number):
    return [schedule.rate(update) for update in range(number)]


def policy_of(schedule, **learn):
    return token_policy(learning_rate=1e-2, lr_scheduler=schedule, **learn, entropy=dict(weight=0.0))


class TestRates:

    def of_transformers(self, kind, warmup, number):
        o = options(kind, warmup)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        scheduler = get_scheduler(
            kind, optimizer, warmup, o['num_training_steps'], scheduler_specific_kwargs=o['specific']
        )
        found = []
        for _ in range(number):
            found.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        return found

    @pytest.mark.parametrize('warmup', [0, 1, 4])
    @pytest.mark.parametrize('kind', SCHEDULES)
    def test_no_update_of_a_warm_up_has_the_rate_0(self, kind, warmup):
        found, expected = rates(Schedule(options(kind, warmup), 0.3), 25), self.of_transformers(kind, warmup, 25)
        assert all(rate > 0 for rate in found[:warmup])
        assert found[warmup:] == expected[warmup:]  # decays end where they did
        if expected[0] == 0:
            assert found[:warmup] == expected[1:warmup + 1]

    def test_by_hand(self):
        assert rates(Schedule(options('constant_with_warmup', 4, None), 1.), 6) == [0.25, 0.5, 0.75, 1, 1, 1]
        assert rates(Schedule(options('linear', 2, 6), 1.), 8) == [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0]


class TestUpdates:

    def test_a_decay_ends_on_time_whatever_the_updates_did(self):
        """Updates without a step count, and torch does not warn about them."""
        policy = policy_of(dict(type='linear', num_training_steps=4), drop_equal_groups=True)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            equal = [update(policy, reward=same_reward) for _ in range(2)]
        metrics = [*equal, *(update(policy) for _ in range(3))]
        assert [m['optimizer_steps'] for m in metrics] == [0, 0, 1, 1, 1]
        assert [m['cur_lr'] for m in metrics] == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3, 0])

    def test_goes_on_from_a_checkpoint(self):
        make = lambda: policy_of(dict(type='linear', num_warmup_steps=3, num_training_steps=9))  # noqa: E731
        policy = make()
        found = [update(policy)['cur_lr'] for _ in range(6)]
        found.append(update(resumed(policy, make))['cur_lr'])
        assert found == pytest.approx([1e-2 * x for x in (1 / 3, 2 / 3, 1, 1, 5 / 6, 4 / 6, 3 / 6)])


class TestNotice:

    @pytest.mark.parametrize('kind, then, last', [('polynomial', 1e-7, 1e-7), ('cosine', 0, 0.0286)])
    def test_of_a_run_that_goes_on_after_its_schedule(self, kind, then, last):
        # cosine rises again: 0.3 x (1 + cos(24 / 20 x pi)) / 2 = 0.0286 in update 24
        told = Schedule(options(kind, end=20), 0.3).notice(25)
        assert told.startswith('policy.run.num_updates = 25: the schedule ends after policy.learn.lr_scheduler.num_tr')
        assert told.endswith(f'The learning rate is then {then:.3g}, and {last:.3g} in the last update')

    @pytest.mark.parametrize('kind, updates', [('linear', 20), ('linear', None), ('constant', 25)])
    def test_of_no_other(self, kind, updates):
        assert Schedule(options(kind, end=20), 0.3).notice(updates) is None

    def test_is_shown_once_at_the_start(self, capsys):
        token_policy(dict(run=dict(num_updates=3)), lr_scheduler=dict(type='linear', num_training_steps=2))
        assert capsys.readouterr().out.count('policy.run.num_updates = 3: the schedule ends after') == 1
