"""Rows that go on with newer weights while they are sampled."""
import pytest
import torch

from ding_grpo.engine.answers import Answer
from ding_grpo.engine.proof import exchanged, log_probs
from ding_grpo.engine.server import Row
from ding_grpo.rollout import EarlyStop, Sampling
from tests.engine.test_run import policy_server, with_engine  # noqa: F401
from tests.engine.test_sampler import PROMPTS, begun, request, rows_of
from tests.runs import each_update, metrics, train


class Learner:
    """Has newer weights once rows are being sampled, twice."""

    def __init__(self, server, weights):
        self.server, self.weights, self.steps = server, weights, 5
        self.old = [{name: w.detach().clone() for name, w in weights.items()}]

    @property
    def has_newer(self):
        return len(self.old) < 3 and len(self.server.asked) > 0

    def take(self):
        with torch.no_grad():
            for w in self.weights.values():
                w.mul_(1.5)
        self.old.append({name: w.detach().clone() for name, w in self.weights.items()})
        self.steps += 2
        self.server.asked.clear()


@pytest.fixture
def sampled(serve, engine, model):
    """Samples while a learner takes two steps; rows whose prompt begins with ``fast`` are answered at once."""

    def sample(fast=None, sampling=Sampling(), **kwargs):
        server = serve()
        sampler = begun(engine(server, sampling=sampling))
        server.asked.clear()
        learner = sampler.newest = Learner(server, sampler.transfer.weights())
        server.faults.seconds = lambda body: 0.0 if len(learner.old) == 3 or body['token_ids'][0] == fast else 30.0
        return sampler, learner, sampler.sample(request(**kwargs))

    return sample


def weights_of_each_token(rollout):
    return [after[:n].tolist() for after, n in zip(rollout.sampled_after, rollout.length)]


@pytest.mark.parametrize('sampling', [Sampling(), Sampling(top_k=4)])
def test_each_token_has_the_log_probability_of_the_weights_that_sampled_it(sampled, model, sampling):
    sampler, learner, rollout = sampled(fast=6, sampling=sampling)
    for prompt, after in zip(PROMPTS, weights_of_each_token(rollout)):
        assert set(after) == {5} if prompt[0] == 6 else after[:2] == [5, 7] and set(after[2:]) <= {9}
    for steps, weights in zip((5, 7, 9), learner.old):
        with exchanged(sampler.transfer.weights(), weights):
            own = log_probs(model, sampling, PROMPTS, rollout)
        of_these = rollout.sampled_after == steps
        assert of_these.any() and (own - rollout.logp).abs()[of_these].max() < 1e-4
    assert (rollout.sampled_after[rollout.action < 0] == -1).all()


def test_the_rest_of_a_row_depends_on_its_key_alone(sampled, model):
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    first = rows_of(sampled()[2])
    row = Row('', [3], dict(max_tokens=6, seed=1), '', torch.tensor([.25, .5]))
    assert row.after(Answer([7], [0.], [[]], ['a']), 'b').params == dict(max_tokens=5, seed=2 ** 52)  # another number
    model.load_state_dict(weights)
    assert rows_of(sampled()[2]) == first
    assert first[0] != first[1]  # of one prompt


def test_rows_keep_their_limits(sampled):
    assert sampled(limit=torch.tensor([2, 3, 4, 9]))[2].length.le(torch.tensor([2, 3, 4, 6])).all()


def test_rows_that_do_not_count_are_ended_also_after_newer_weights(sampled):
    stop = EarlyStop([(i // 2, i % 2) for i in range(4)], 1, torch.device('cpu'))
    _, _, rollout = sampled(fast=6, early_stop=stop)
    assert sum(stop.counted(rollout.length)) == 2 and rollout.length.min() > 0
    assert rollout.length[3] == 1  # what it had when the other row of its group had ended


def test_run_learns_from_rows_of_several_weights_each_compared_with_its_own(policy_server, monkeypatch):  # noqa: F811
    mixed = []
    policy_server.faults.seconds = lambda body: 0.5
    each_update(
        monkeypatch, before=lambda number, policy, data: mixed.append([group['sampled_after'] for group in data])
    )
    configs = with_engine(url=policy_server.url)
    configs[0].policy.collect.update(max_staleness=1, in_flight=True)
    train(configs, updates=4, learning_rate=0.01)
    assert all(isinstance(after, int) for after in mixed[0])
    for number, groups in enumerate(mixed[1:], 1):
        assert all(after.max() <= number and after.min() >= -1 for after in groups)
    assert any(len(set(row.tolist()) - {-1}) == 2 for groups in mixed[1:] for after in groups for row in after)
    assert max(m['staleness_max'] for m in metrics()) == 1
