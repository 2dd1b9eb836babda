"""A folder of weights that has no room for them."""
import contextlib
import resource

import pytest
import torch

from ding_common import PeerError
from tests.engine.test_sampler import begun


@pytest.fixture
def full():
    """Context in which files cannot grow beyond 4 KB."""

    @contextlib.contextmanager
    def limited():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


def test_folder_without_room_for_weights(serve, engine, model, full, tmp_path):
    """As /dev/shm of a container: the error of safetensors is no OSError."""
    sampler = begun(engine(serve()))
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    with full(), pytest.raises(PeerError, match=r'weights cannot be written there \(.*File too large'):
        sampler.load(model.state_dict(), 2)


def test_folder_without_room_for_the_model_of_a_server(engine, full):
    sampler = engine(launch=dict(python='python'))
    with full(), pytest.raises(PeerError, match=r'weights cannot be written there \(.*File too large'):
        sampler.load(sampler.model.state_dict(), 1)
