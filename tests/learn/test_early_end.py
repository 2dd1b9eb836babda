"""``target_kl`` and ``max_ratio`` end the epochs of an update, and the step that exceeds them is not taken."""
import pytest
import torch

from tests.policies import token_policy, update, weights


@pytest.mark.parametrize(
    'options', [dict(batch_groups=2), dict(batch_groups=1), dict(batch_groups=2, loss='gspo')], ids=str
)  # yapf: disable
def test_target_kl_ends_the_epochs_where_it_is_exceeded(options):
    policy = token_policy(learning_rate=1e-2, epoch_per_collect=50, target_kl=0.02, **options)
    step, found = policy.updater.step, []

    def note(batch):
        before = weights(policy)
        log_ratio = policy.read(batch).logp - batch.logp_old
        kl = ((log_ratio.exp() - 1 - log_ratio) * batch.weight).sum() / batch.weight.sum()
        metrics = step(batch)
        found.append((kl.item(), not torch.equal(before, weights(policy))))
        return metrics

    policy.updater.step = note
    metrics = update(policy)
    steps = int(metrics['optimizer_steps'])
    assert 1 <= steps < 49 and len(found) == steps + 1
    assert all(kl <= 0.02 and moved for kl, moved in found[:-1])
    assert found[-1][0] > 0.02 and not found[-1][1]
    assert metrics['kl_old'] == pytest.approx(sum(kl for kl, _ in found) / len(found), rel=1e-3)


def after_epochs(epochs, **learn):
    """Metrics and weights after an update with so many epochs."""
    policy = token_policy(learning_rate=3e-3, epoch_per_collect=epochs, **learn)
    return update(policy), weights(policy)


@pytest.mark.parametrize('most', [None, 30])
def test_max_ratio_ends_the_epochs_with_the_step_left_undone(most):
    found = [after_epochs(epochs, micro_batch_tokens=most) for epochs in (1, 2, 3)]
    ratios = [metrics['ratio_max'] for metrics, _ in found]  # the largest of each epoch's mini-batch
    bound = (ratios[1] + ratios[2]) / 2
    metrics, got = after_epochs(6, micro_batch_tokens=most, max_ratio=bound)
    assert metrics['optimizer_steps'] == 2 and metrics['skipped_steps'] == 0
    assert metrics['ratio_max'] == ratios[2] > bound
    assert torch.equal(got, found[1][1])
