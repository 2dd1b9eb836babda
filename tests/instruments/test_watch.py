"""What a policy's watch reads and when, and that it changes nothing that is trained."""
import pytest
import torch
from easydict import EasyDict

from ding_grpo.instruments.history import History
from ding_grpo.instruments.watch import Watch
from ding_grpo.learn.observer import View
from dizoo_llm.envs import TokenEnv
from tests.policies import make_batch, resumed, sample_groups, token_policy, update
from tests.same import same


def odd_rows(group, row):
    return float(row % 2)


def nothing(group, row):
    return 0.0


def train(updates=3, start=0, policy=None, of_row=odd_rows, watched=True, env=None, **learn):
    """A policy after these updates."""
    if policy is None:
        policy = token_policy(env=env, **dict(dict(learning_rate=1e-3), **learn))
    if not watched:
        del policy.observers['watch']
    for number in range(start, start + updates):
        update(policy, reward=of_row, collect=number)
    return policy


def history(policy):
    return policy.observers['watch'].history


def causes(policy):
    return [found['cause'] for found in history(policy).found]


class Updater:
    optimizer_steps = 0

    def __init__(self, model):
        self.model = model

    def read(self, batch):
        return self.model(torch.ones(len(batch), 3)).detach()

    def read_with_entropy(self, batch):
        return self.read(batch), self.read(batch)


def watch_of(model, warmup=0):
    return Watch(View(EasyDict(learn=dict(critic=dict(value_warmup=warmup))), None, model, Updater(model), None, None))


class TestNothingChanges:

    def test_weights_optimizer_and_random_numbers(self):

        def state(watched):
            torch.manual_seed(5)
            found = train(watched=watched, kl=dict(beta=0.1)).learn_mode.state_dict()
            return {key: value for key, value in found.items() if key != 'watch'}, torch.rand(3)

        same(state(True), state(False))

    def test_running_means_dropout_and_modes(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
        model[2].eval()
        before, random = model[1].running_mean.clone(), torch.get_rng_state()
        assert watch_of(model).look(make_batch(torch.ones(4, 2), adv=torch.ones(4))) is not None
        assert torch.equal(model[1].running_mean, before) and torch.equal(torch.get_rng_state(), random)
        assert [m.training for m in model] == [True, True, False] and model.training


class TestLook:

    def looks(self, update, rows=4, warmup=0, weight=1.0):
        found = watch_of(torch.nn.Linear(3, 2), warmup)
        found.history = History(updates=update)
        return found.look(make_batch(torch.full((rows, 2), weight), group=torch.arange(rows) // 2))

    def test_the_first_ten_updates_and_every_twentieth(self):
        assert [n for n in range(41) if self.looks(n) is not None] == [*range(10), 20, 40]

    @pytest.mark.parametrize('rows, read', [(2, 2), (8, 4), (40, 10), (200, 32)])
    def test_a_quarter_of_the_rows_within_bounds(self, rows, read):
        assert self.looks(0, rows).batch.group.tolist() == [i // 2 for i in range(read)]

    def test_neither_while_the_critic_learns_alone_nor_without_a_step_that_counts(self):
        assert self.looks(1, warmup=2) is None and self.looks(2, warmup=2) is not None
        assert self.looks(0, weight=0.0) is None and self.looks(0, rows=0) is None


class TestFound:

    def test_a_healthy_start(self):
        found = history(train())
        assert (found.updates, found.rows, len(found.looks)) == (3, 24, 3) and found.found == []
        # the advantages of the second half of a group are positive, and its rows have become more probable
        assert found.looks[-1]['follow'] > 0 and 0 < found.looks[-1]['moved'] < 1
        assert found.recent[-1]['sampler_gap_mean'] < 1e-5

    def test_a_reference_that_moves(self):
        policy = train(updates=1, kl=dict(beta=0.1))
        assert causes(policy) == []
        next(policy.reference.parameters()).data += 1e-7
        assert causes(train(1, 1, policy)) == ['drift']

    def test_a_reference_that_is_renewed(self):
        assert causes(train(updates=5, kl=dict(beta=0.1, ref_sync_freq=2, ref_sync_mixup=0.5))) == []

    def test_a_sign_error_goes_against_the_advantages(self):
        """An optimizer that climbs: the rows with a positive advantage become less probable."""
        policy = token_policy(learning_rate=1e-3)
        for p in policy.model.parameters():
            p.register_hook(torch.neg)
        found, = history(train(6, policy=policy)).found
        assert found['cause'] == 'against' and found['update'] == 5

    @pytest.mark.parametrize('learn, found', [(dict(), ['no_success']), (dict(advantage='none', adv_method=None), [])])
    def test_a_reward_that_is_not_learned_from_is_no_cause(self, learn, found):
        """Else it is reported once, and its symptoms, such as equal groups, never."""
        policy = token_policy(
            env=TokenEnv(max_new_tokens=10), demonstrations=dict(share=0.5), **dict(dict(learning_rate=1e-3), **learn)
        )
        policy.observers['watch'].probed([])
        assert causes(train(14, policy=policy, of_row=nothing)) == found

    def test_groups_that_were_used_before_do_not_count(self):
        policy = token_policy()
        groups = sample_groups(policy)
        policy.learn_mode.forward([dict(groups[0], use=2), dict(groups[1], use=1)])
        assert history(policy).rows == 4
        policy.learn_mode.forward([dict(group, use=2) for group in groups])
        assert history(policy).rows == 4 and history(policy).updates == 2

    def test_the_state_goes_with_the_checkpoint(self):
        policy = train(updates=2)
        assert history(resumed(policy, token_policy)) == history(policy)
        state = policy.learn_mode.state_dict()
        del state['watch']  # of an older version
        policy.learn_mode.load_state_dict(state)
        assert history(policy) == History()
