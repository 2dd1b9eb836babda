"""Weights that did not arrive: what a run would learn from rows of another policy."""
import pytest
import torch

from ding_common import ConfigError, PeerError
from ding_grpo.model import CausalLM
from ding_grpo.rollout import Sampling
from tests.engine.conftest import MODEL, Letters


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


K_PROJ, UP_PROJ = 'model.layers.1.self_attn.k_proj.weight', 'model.layers.0.mlp.up_proj.weight'
O_PROJ = {f'model.layers.{i}.self_attn.o_proj.weight' for i in range(2)}


def halved():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CausalLM(config=dict(MODEL), dtype='bfloat16')


@pytest.mark.parametrize(
    'dtype, fault, told',
    [
        ('float32', dict(keeps_weights=True), 'old values of all of them'),
        ('bfloat16', dict(keeps_weights=True), 'old values of all of them'),
        ('float32', dict(keeps={K_PROJ}), f'old values of {K_PROJ}.'),
        ('float32', dict(keeps={'model.norm.weight'}), 'old values of model.norm.weight.'),
        ('float32', dict(keeps={UP_PROJ}), f'old values of {UP_PROJ}.'),
        ('float32', dict(keeps=O_PROJ), 'old values of model.layers.*.self_attn.o_proj.weight.'),
        ('float32', dict(keeps_tied_head=True), 'the output matrix, which is tied to the embedding'),
        ('float32', dict(raw_logprobs=True), '--logprobs-mode processed_logprobs'),  # those before the temperature
    ],
    ids=range(8)
)
def test_what_does_not_arrive_is_named(serve, engine, dtype, fault, told):
    """By the second of two servers, of which the first is as it must be."""
    first, second = (serve(halved() if dtype == 'bfloat16' else None) for _ in range(2))
    first.dtype = second.dtype = dtype
    vars(second.faults).update(fault)
    with pytest.raises(PeerError) as error:
        begin(engine(first, second, sampling=Sampling(temperature=0.5 if 'raw_logprobs' in fault else 1.0)))
    assert second.url in error.value.message and told in error.value.message


def test_half_precision_is_rounding(serve, engine):
    server = serve(halved())
    server.dtype = 'bfloat16'
    sampler = engine(server)
    begin(sampler)
    assert not sampler.exact and 1e-3 < sampler.bounds.mean < 1


def test_another_rotary_setting(serve, engine):
    server = serve()
    server.model.lm.model.rotary_emb.inv_freq.mul_(0.3)
    with pytest.raises(PeerError, match='rotary embedding'):
        begin(engine(server))


def test_another_tokenizer(serve, engine):
    begin(engine(serve(tokenizer=Letters())))
    with pytest.raises(ConfigError, match='another tokenizer than env.tokenizer'):
        begin(engine(serve(tokenizer=Letters(first=1))))
