import random

import numpy as np
import pytest
import torch

from ding_common.processes.random_state import random_state_kept


@pytest.mark.unittest
def test_generators_continue_as_if_nothing_was_drawn():

    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item()

    for failing in (False, True):
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        draw()
        expected = draw()
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        draw()
        try:
            with random_state_kept():
                draw()
                assert not failing
        except AssertionError:
            pass
        assert draw() == expected
