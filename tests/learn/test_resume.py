"""A policy that loads a checkpoint learns as if it had not stopped, whatever it learns with."""
import copy

import pytest
import torch

from tests.policies import change, reward, sample_groups, token_policy
from tests.same import same


@pytest.mark.parametrize(
    'learn',
    [
        dict(batch_groups=1, lr_scheduler=dict(type='linear', num_warmup_steps=0, num_training_steps=9)),
        dict(loss='clip_cov', adv_method=None, surrogate_options=dict(share=0.1, low=0., high=9.)),  # draws tokens
        dict(kl=dict(beta=0.1, ref_sync_freq=2)),
        *(
            dict(kl=dict(beta=0.1, in_reward=of_reward, target=1e-6, horizon=8), entropy=dict(target=9.0, step=0.1))
            for of_reward in (False, True)
        ),
        dict(advantage='gae', adv_method=None),
        dict(policy=dict(model=dict(dtype='bfloat16')), batch_groups=1, epoch_per_collect=2),  # groups are fresh or not
    ],
    ids=str
)
def test_is_bit_identical(learn, tmp_path):
    policy, other = (token_policy(**dict(dict(learning_rate=1e-2), **learn)) for _ in '12')
    for one in (policy, other) if 'kl_target' in learn else ():
        change(one.reference, 1.3)
    for number in range(3):
        policy.learn_mode.forward(sample_groups(policy, [0, 1, 2, 3], collect=number, reward=reward))
    torch.save(policy.learn_mode.state_dict(), tmp_path / 'ckpt')
    other.learn_mode.load_state_dict(torch.load(tmp_path / 'ckpt', weights_only=True))
    data = sample_groups(policy, [2, 3, 0, 1], collect=3, reward=reward)
    torch.rand(1)  # the global generator is not used
    for _ in range(2):
        found = [one.learn_mode.forward(copy.deepcopy(data)) for one in (policy, other)]
        same(*({k: v for k, v in metrics.items() if 'second' not in k} for metrics in found))
    same(policy.learn_mode.state_dict(), other.learn_mode.state_dict())
