"""The same on every device: an update. tests/gpu has whole runs."""
import pytest

from tests.policies import make_policy, sample_groups
from tests.runs import distance, weights


@pytest.mark.envtest
@pytest.mark.parametrize('options', [{}, dict(epoch_per_collect=2, micro_batch_tokens=40, kl=dict(beta=0.1))], ids=str)
def test_an_update_is_that_of_the_cpu(think_answer, device, options):
    main, create = think_answer
    main.policy.learn.update(options)
    data = sample_groups(make_policy(main, create), range(4))
    found = []
    for main.policy.cuda in (False, device == 'cuda'):
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(data)
        found.append({k: v for k, v in metrics.items() if 'second' not in k and 'memory' not in k})
        found.append({name: value.cpu() for name, value in weights(policy).items()})
    assert distance(found[1], found[3]) < 1e-5
    assert found[2] == pytest.approx(found[0], abs=1e-4, rel=1e-3)
