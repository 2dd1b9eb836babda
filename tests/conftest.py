import gc
import os
import signal

os.environ.setdefault('HF_HUB_OFFLINE', '1')  # no test may ask a hub
os.environ.setdefault('GOMP_SPINCOUNT', '1000')  # tests run side by side

import pytest  # noqa: E402

import ding_grpo  # noqa: E402, F401  imports little, and mends DI-engine once a conftest of a folder imports it

TINY = dict(
    model_type='llama',
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)


def pytest_configure(config):
    """The process that hands the tests to others imports none of what they test: no test begins before it has."""
    if hasattr(config, 'workerinput') or not config.getoption('numprocesses', None):
        from ding_common import import_ding
        gc.disable()
        import_ding()


def pytest_collection_finish():
    """Garbage is collected only now, and then ignores what has been imported and collected, a million objects.
    Otherwise each full collection takes almost half a second, and some tests start ten of them."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item):
    """A test of no other kind is a unit test."""
    if not any(item.get_closest_marker(kind) for kind in ('envtest', 'algotest', 'cudatest')):
        item.add_marker('unittest')


@pytest.fixture
def tiny_config() -> dict:
    return dict(TINY)


@pytest.fixture
def tiny_model():
    """A random causal language model of 2 layers and 32 tokens, the same in each test."""
    import torch
    from ding_grpo.model import CausalLM
    torch.manual_seed(0)
    return CausalLM(config=dict(TINY))


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A new folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def think_answer(own_folder):
    """The shipped config made small, in a folder of its own: (main_config, create_config)."""
    from tests.shipped import small
    return small('think_answer_grpo')


@pytest.fixture(autouse=True)
def _signals():
    """What a test runs gives Ctrl-C and SIGTERM back: processes that later tests fork could not be ended otherwise."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = list(map(signal.getsignal, numbers))
    yield
    assert list(map(signal.getsignal, numbers)) == before


@pytest.fixture(autouse=True)
def _curves(request, monkeypatch):
    """A run within a test draws its curve, half of the time of a short run, only where the test looks at it."""
    if request.node.get_closest_marker('curves') is None:
        monkeypatch.setattr('ding_grpo.run.report.draw_curves', lambda runs, path: None)


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=pytest.mark.cudatest)])
def device(request):
    return request.param


@pytest.fixture
def on_device(device):
    """Each device in turn, where new tensors are made."""
    import torch
    with torch.device(device):
        yield


@pytest.fixture
def multiplies_bfloat16(monkeypatch):
    """A function that sets on which devices, ``cpu`` or ``cuda``, bfloat16 is native."""
    from ding_grpo.act import token_actor
    from ding_grpo.model import autocast
    from ding_grpo.model.read import attention

    def on(*devices):
        for module in (autocast, token_actor, attention):
            monkeypatch.setattr(module, 'multiplies_bfloat16', lambda device: device in devices)

    return on


@pytest.fixture
def gpu():
    """A GPU without a GPU."""
    from tests.simulated_gpu import SimulatedGPU
    with SimulatedGPU() as gpu:
        yield gpu


@pytest.fixture(autouse=True)
def _simulated_gpu(request):
    if os.environ.get('TEST_DEVICE') == 'simulated' and request.node.get_closest_marker('cudatest') is not None:
        request.getfixturevalue('gpu')


def pytest_collection_modifyitems(config, items):
    """Without a GPU, tests that need one are only listed, but with TEST_DEVICE=simulated, or, of tests/gpu, cpu."""
    import torch
    device = os.environ.get('TEST_DEVICE')
    if torch.cuda.is_available() or config.option.collectonly or device == 'simulated':
        return
    tried = [item for item in items if device == 'cpu' and '/gpu/' in str(item.path)]
    needing = [item for item in items if item.get_closest_marker('cudatest') and item not in tried]
    items[:] = [item for item in items if item not in needing]
    config.hook.pytest_deselected(items=needing)
