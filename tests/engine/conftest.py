import copy

import pytest
import torch
from easydict import EasyDict

from ding_grpo.config.keys import DEFAULTS
from ding_grpo.engine.proof import log_probs
from ding_grpo.engine.vllm import VllmSampler
from ding_grpo.model import CausalLM
from ding_grpo.rollout import Sampling
from dizoo_llm.envs.spec import TokenSpec
from tests.conftest import TINY
from tests.engine.small_vllm import SmallVllm

MODEL = dict(TINY, vocab_size=40, tie_word_embeddings=True)


class Letters:
    """As much of a tokenizer as the start of an engine needs."""

    def __init__(self, first=0):
        self._first = first

    def decode(self, ids, **_):
        return ' '.join(map(str, ids))

    def encode(self, text, **_):
        return [int(word) + self._first for word in text.split()]


def make_model(folder=None):
    """With adapters if its base is in a folder."""
    torch.manual_seed(0)
    lora = dict(r=2, target_modules=['q_proj', 'v_proj', 'down_proj'])
    return CausalLM(config=dict(MODEL)) if folder is None else CausalLM(pretrained=str(folder), lora=lora)


SPEC = TokenSpec(Letters(), (1, ), 36, 8, 6, dict(right=1.), 1, 6, None)


def make_sampler(model, sampling=Sampling(), spec=SPEC, quantize=None, **engine):
    cfg = EasyDict(copy.deepcopy(DEFAULTS))
    cfg.model.quantize, cfg.collect.engine, cfg.collect.top_k = quantize, dict(engine, type='vllm'), sampling.top_k
    sampler = VllmSampler(cfg, model)
    sampler.bind(spec, sampling)
    return sampler


def counts(rollout):
    """Whether each place has a token, (B, T)."""
    return torch.arange(rollout.action.shape[1]) < rollout.length.unsqueeze(1)


def gap(sampler, prompts, rollout, sampling=Sampling()):
    """The largest difference of log-probabilities of the tokens of a rollout to those of the model."""
    return (log_probs(sampler.model, sampling, prompts, rollout) - rollout.logp).abs()[counts(rollout)].max()


@torch.no_grad()
def learn(sampler, update, share=1.0):
    """Change the weights at random, by a share of their mean size, and give them to the sampler."""
    for w in sampler.transfer.weights().values():
        w.add_(share * torch.randn(w.shape) * w.abs().mean())
    sampler.load(sampler.model.state_dict(), update + 2)


@pytest.fixture
def model():
    model = make_model()
    model.limit_vocabulary(36)  # as of many models, whose output matrix is padded
    return model


@pytest.fixture
def serve():
    """Starts servers with the model of ``model``, or another."""
    servers = []

    def start(model=None, **kwargs):
        servers.append(SmallVllm(make_model() if model is None else model, **kwargs))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def engine(model, tmp_path):
    """Makes the sampler of a model, given its servers or other keys of ``engine``."""
    made = []

    def make(*servers, sampling=Sampling(), model=model, **keys):
        urls = dict(url=[server.url for server in servers]) if servers else {}
        made.append(make_sampler(model, sampling, **{'folder': str(tmp_path), 'patience': 5.0, **urls, **keys}))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()
