import random

import numpy as np
import pytest
import torch

from ding_common.processes.random_state import random_state_kept


@pytest.mark.parametrize('fails', [False, True])
def test_generators_continue_as_if_nothing_was_drawn(fails):

    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item()

    def seed():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        draw()

    seed()
    expected = draw()
    seed()
    try:
        with random_state_kept():
            draw()
            assert not fails
    except AssertionError:
        pass
    assert draw() == expected
