"""What is read of the infos of an environment."""
from types import SimpleNamespace

import numpy as np
import pytest

from ding_grpo.collect.group import Group


@pytest.mark.unittest
def test_of_an_info_only_plain_entries_are_kept():
    """The rest may be what neither a checkpoint nor another process can take."""
    group = Group(0, [4, 5])
    for i in (4, 5):
        group.last_info[i] = dict(kind='a', eval_episode_return=np.array([1.5]), engine=lambda: 0, seen={1, 2})
    policy = SimpleNamespace(get_train_sample=lambda episodes: [{}])
    assert group.fold(policy, 3).infos == [{'kind': 'a', 'return': 1.5}] * 2
