"""Weights that did not arrive: what a run would learn from rows of another policy."""
import pytest
import torch

from ding_common import ConfigError, PeerError
from ding_grpo.model import CausalLM
from ding_grpo.rollout import Sampling
from tests.engine.conftest import MODEL, Letters

pytestmark = pytest.mark.unittest


def begin(engine):
    """As before the first rows of a run."""
    engine.load(engine.model.state_dict(), 1)


def test_start_leaves_the_model_as_it_was(serve, engine, model):
    before = {name: w.clone() for name, w in model.state_dict().items()}
    server = serve()
    begin(engine(server))
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert all(torch.equal(w, before[name]) for name, w in server.model.state_dict().items())
    assert server.loads == server.resets == 2


@pytest.mark.parametrize('sampling', [Sampling(), Sampling(temperature=0.7, top_k=5, top_p=0.9)])
def test_bounds_are_of_rounding(serve, engine, sampling):
    sampler = engine(serve(), sampling=sampling)
    begin(sampler)
    assert sampler.exact and sampler.bounds.mean < 1e-3


def test_other_weights_are_replaced(serve, engine):
    server = serve()
    with torch.no_grad():
        for w in server.model.parameters():
            w.mul_(0.5)
    begin(engine(server))


def refused(sampler, *words):
    with pytest.raises(PeerError) as error:
        begin(sampler)
    for word in words:
        assert word in error.value.message, error.value.message


def test_no_weight_arrives(serve, engine):
    server = serve()
    server.faults.keeps_weights = True
    refused(engine(server), 'old values of all of them')


@pytest.mark.parametrize(
    'name', ['model.layers.1.self_attn.k_proj.weight', 'model.norm.weight', 'model.layers.0.mlp.up_proj.weight']
)
def test_one_tensor_does_not_arrive(serve, engine, name):
    server = serve()
    server.faults.keeps = {name}
    refused(engine(server), f'old values of {name}.')


def test_one_kind_of_tensors_does_not_arrive(serve, engine):
    server = serve()
    server.faults.keeps = {f'model.layers.{i}.self_attn.o_proj.weight' for i in range(2)}
    refused(engine(server), 'old values of model.layers.*.self_attn.o_proj.weight.')


def test_a_tied_output_matrix_stays(serve, engine):
    server = serve()
    server.faults.keeps_tied_head = True
    refused(engine(server), 'the output matrix, which is tied to the embedding')


def test_second_server_has_old_weights(serve, engine):
    server = serve()
    server.faults.keeps_weights = True
    refused(engine(serve(), server), server.url)


def test_log_probabilities_before_the_temperature(serve, engine):
    server = serve()
    server.faults.raw_logprobs = True
    refused(engine(server, sampling=Sampling(temperature=0.5)), '--logprobs-mode processed_logprobs')


def halved():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CausalLM(config=dict(MODEL), dtype='bfloat16')


def test_half_precision_is_rounding(serve, engine):
    server = serve(halved())
    server.dtype = 'bfloat16'
    sampler = engine(server)
    begin(sampler)
    assert not sampler.exact and 1e-3 < sampler.bounds.mean < 1


def test_half_precision_with_old_weights(serve, engine):
    server = serve(halved())
    server.dtype, server.faults.keeps_weights = 'bfloat16', True
    refused(engine(server), 'old values of all of them')


def test_another_rotary_setting(serve, engine):
    server = serve()
    server.model.lm.model.rotary_emb.inv_freq.mul_(0.3)
    refused(engine(server), 'rotary embedding')


def test_another_tokenizer(serve, engine):
    begin(engine(serve(tokenizer=Letters())))
    with pytest.raises(ConfigError, match='another tokenizer than env.tokenizer'):
        begin(engine(serve(tokenizer=Letters(first=1))))
