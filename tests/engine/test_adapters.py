"""Adapters: a server samples with those of another update, or with none."""
import pytest
import torch

from ding_common import ConfigError, PeerError
from tests.engine.conftest import MODEL, gap, learn, make_model
from tests.engine.test_sampler import PROMPTS, begun, request


@pytest.fixture
def with_adapters(tmp_path):

    def make(vocabulary=MODEL['vocab_size']):
        folder = tmp_path / 'base'
        if not folder.exists():
            make_model().lm.save_pretrained(folder)
        model = make_model(folder)
        model.limit_vocabulary(vocabulary)
        return model

    return make


def test_adapters_of_each_update_are_sampled_with(serve, engine, with_adapters):
    model, server = with_adapters(36), serve(with_adapters())
    sampler = begun(engine(server, model=model))
    for update in range(2):
        learn(sampler, update)
        assert gap(sampler, PROMPTS, sampler.sample(request())) < 1e-4
        assert server.adapters == [server.version]  # those of before are dropped
    assert server.loads == 0  # the base is not sent


def test_one_adapter_does_not_arrive(serve, engine, with_adapters):
    server, name = serve(with_adapters()), 'model.layers.1.mlp.down_proj.lora_B.default.weight'
    server.faults.keeps = {name}
    with pytest.raises(PeerError, match=f'old values of {name}'):
        begun(engine(server, model=with_adapters(36)))


def test_another_base(serve, engine, with_adapters):
    server = serve(with_adapters())
    with torch.no_grad():
        server.model.lm.model.norm.weight.mul_(2)
    with pytest.raises(PeerError, match='old weights do not explain it'):
        begun(engine(server, model=with_adapters(36)))


def test_base_that_a_run_starts_with_is_without_adapters(engine, with_adapters, tmp_path):
    model = with_adapters()
    engine(url='http://127.0.0.1:9', model=model).transfer.save_base(str(tmp_path / 'saved'))
    saved = type(model)(pretrained=str(tmp_path / 'saved')).state_dict()
    assert all(torch.equal(saved[name], w) for name, w in make_model().state_dict().items())


def test_quantized_base(engine, model):
    with pytest.raises(ConfigError, match="policy.model.quantize = '4bit': not available"):
        engine(url='http://127.0.0.1:9', quantize='4bit')
