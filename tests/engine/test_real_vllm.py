"""
The engine against vLLM itself: python -m pytest tests/engine/test_real_vllm.py -m algotest, with an environment as
docs/guides/vllm.md makes it, in .venv-vllm or at VLLM_PYTHON. Six minutes, most of which are starts of the server.
"""
import os
import signal
import time

import pytest
import torch

from ding_common import PeerError
from ding_grpo.engine.proof import Gap, exchanged, log_probs
from ding_grpo.model import CausalLM
from ding_grpo.rollout import EarlyStop, Sampling
from tests.engine.conftest import MODEL, SPEC, counts, gap, learn, make_sampler
from tests.engine.test_sampler import request, rows_of
from tests.processes import ROOT

PYTHON = os.path.abspath(os.environ.get('VLLM_PYTHON', os.path.join(ROOT, '.venv-vllm/bin/python')))
pytestmark = [
    pytest.mark.algotest,
    pytest.mark.skipif(not os.path.exists(PYTHON), reason=f'no {PYTHON}: docs/guides/vllm.md says how to make it')
]
ALL = Sampling()
NARROW = Sampling(0.8, top_k=6, top_p=0.9)
WITHOUT_MENDING = '''
from ding_grpo_weights import FileTransfer, Worker, finalize_layerwise_reload


def finish_weight_update(self):
    finalize_layerwise_reload(self.model, self.model_config)


FileTransfer.finish_weight_update = finish_weight_update
'''
PROMPTS = [torch.tensor(ids) for ids in ([3, 4, 5], [3, 4, 5], [6, 7], [8, 9, 10, 11])] * 4


def sampler_of(folder, lora=None, positions=64, **engine):
    torch.manual_seed(0)
    # vLLM has no smaller heads on a processor
    model = CausalLM(config=dict(MODEL, hidden_size=128, num_attention_heads=2, max_position_embeddings=positions))
    if lora is not None:
        base = os.path.join(folder, 'base')
        model.lm.save_pretrained(base)
        model = CausalLM(pretrained=base, lora=lora)
    model.limit_vocabulary(36)
    most = positions - 58
    spec = SPEC._replace(max_prompt_length=16, max_new_tokens=most, max_tokens=most + 6)
    sampler = make_sampler(model, spec=spec, folder=folder, **engine)
    try:
        sampler.load(model.state_dict(), 1)
    except PeerError:
        sampler.close()
        raise
    return sampler


@pytest.fixture(scope='module')
def sampler(tmp_path_factory):
    launch = dict(python=PYTHON, args=['--max-logprobs', '20'])
    sampler = sampler_of(str(tmp_path_factory.mktemp('engine')), launch=launch, patience=600.)
    yield sampler
    sampler.close()


def learns(sampler, updates):
    """Change the weights as often, and look at rows of each."""
    assert sampler.exact
    rows = [rows_of(sampler.sample(request(PROMPTS)))]
    for update in range(updates):
        learn(sampler, update)
        rollout = sampler.sample(request(PROMPTS))
        assert gap(sampler, PROMPTS, rollout) < 1e-4
        rows.append(rows_of(rollout))
    assert all(before != after for before, after in zip(rows, rows[1:]))


def test_weights_of_three_updates(sampler):
    learns(sampler, 3)


def test_same_rows_again_and_others_in_a_group(sampler):
    first, again = (rows_of(sampler.sample(request(PROMPTS))) for _ in range(2))
    assert first == again and len(set(map(tuple, first[::4]))) > 1


def test_narrow_distribution_and_what_it_keeps(sampler):
    sampler.sampling = NARROW
    try:
        rollout = sampler.sample(request(PROMPTS))
    finally:
        sampler.sampling = ALL
    assert gap(sampler, PROMPTS, rollout, NARROW) < 1e-4
    assert (rollout.kept == rollout.action.unsqueeze(-1)).any(-1)[counts(rollout)].all()
    assert rollout.action.max() < 36


def test_greedy_and_a_second_turn(sampler):
    rollout = sampler.sample(request(PROMPTS[2:4], greedy=True))
    for prompt, ids in zip(PROMPTS[2:4], rows_of(rollout)):
        for t, i in enumerate(ids):
            logit = sampler.model.lm(torch.cat([prompt, torch.tensor(ids[:t], dtype=torch.long)])[None]).logits
            assert logit[0, -1, i] > logit[0, -1, :36].max() - 1e-4
    longer = [torch.cat([p, torch.tensor(ids), torch.tensor([2])]) for p, ids in zip(PROMPTS[2:4], rows_of(rollout))]
    assert gap(sampler, longer, sampler.sample(request(longer))) < 1e-4


def test_server_that_stops_and_goes_on(sampler, tmp_path):
    other = sampler_of(str(tmp_path), url=sampler.pool.servers[0].url, seconds=4., patience=4.)
    expected = rows_of(other.sample(request(PROMPTS)))
    os.killpg(sampler.pool.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(PeerError, match='does not answer for 4 s|have no answer'):
            other.sample(request(PROMPTS))
    finally:
        os.killpg(sampler.pool.process.pid, signal.SIGCONT)
    assert rows_of(other.sample(request(PROMPTS))) == expected
    other.close()


def test_server_that_is_killed_is_started_again(sampler):
    sampler.pool.send()  # another sampler has used the server
    expected = rows_of(sampler.sample(request(PROMPTS)))
    os.killpg(sampler.pool.process.pid, signal.SIGKILL)
    assert rows_of(sampler.sample(request(PROMPTS))) == expected


def test_adapters_of_three_updates(tmp_path):
    lora = dict(r=4, init_lora_weights='gaussian', target_modules=['q_proj', 'v_proj', 'down_proj'])
    sampler = sampler_of(str(tmp_path), lora, launch=dict(python=PYTHON), patience=600.)
    try:
        for w in sampler.transfer.weights().values():
            torch.nn.init.normal_(w, std=0.3)
        learns(sampler, 3)
    finally:
        sampler.close()


def test_tied_output_matrix_that_vllm_keeps_is_named(tmp_path):
    """Of vLLM 0.32 on a processor, when the worker does not mend it."""
    (tmp_path / 'without_mending.py').write_text(WITHOUT_MENDING, encoding='utf-8')
    launch = dict(python=PYTHON, args=['--worker-extension-cls', 'without_mending.Worker'])
    with pytest.raises(PeerError, match='old values of the output matrix, which is tied to the embedding'):
        sampler_of(str(tmp_path), launch=dict(launch, env=dict(PYTHONPATH=str(tmp_path))), patience=600.)


def test_half_precision(tmp_path):
    """The gap stays within the bounds of the start, also after an update."""
    sampler = sampler_of(str(tmp_path), launch=dict(python=PYTHON, args=['--dtype', 'bfloat16']), patience=600.)
    try:
        assert not sampler.exact and 1e-4 < sampler.bounds.mean < 0.2
        for update in range(2):
            rollout = sampler.sample(request(PROMPTS))
            logp = log_probs(sampler.model, ALL, PROMPTS, rollout)
            assert sampler.bounds.hold(Gap.of(logp, rollout.logp, counts(rollout)))
            learn(sampler, update, share=0.1)
    finally:
        sampler.close()


@pytest.fixture(scope='module')
def slow(tmp_path_factory):
    """Samples rows of some seconds."""
    folder = str(tmp_path_factory.mktemp('slow'))
    sampler = sampler_of(folder, positions=600, launch=dict(python=PYTHON), patience=600.)
    sampler.spec = sampler.spec._replace(eos_token_ids=())
    yield sampler
    sampler.close()


def long_rows(sampler, **kwargs):
    uniform = torch.rand(len(PROMPTS), sampler.spec.max_new_tokens, dtype=torch.float64)
    return sampler.sample(request(PROMPTS, **kwargs)._replace(uniform=uniform))


def test_rows_that_do_not_count_are_ended(slow):
    """Their requests ran to their end under names that vLLM does not know."""
    most = slow.spec.max_new_tokens
    limit = torch.tensor([most, 20] * (len(PROMPTS) // 2))
    stop = EarlyStop([(i // 2, i % 2) for i in range(len(PROMPTS))], 1, torch.device('cpu'))
    rollout = long_rows(slow, limit=limit, early_stop=stop)
    assert stop.counted(rollout.length) == [False, True] * (len(PROMPTS) // 2)
    assert rollout.length[::2].max() < most and gap(slow, PROMPTS, rollout) < 1e-4


def test_rows_go_on_with_newer_weights(slow):
    sampler, newest = slow, InAWhile(slow.transfer.weights())
    sampler.newest = newest
    rollout = long_rows(sampler)
    sampler.newest = None
    assert rollout.length.tolist() == [sampler.spec.max_new_tokens] * len(PROMPTS)
    for steps, weights in enumerate(newest.all):
        with exchanged(sampler.transfer.weights(), weights):
            logp = log_probs(sampler.model, ALL, PROMPTS, rollout)
        of_these = rollout.sampled_after == steps
        assert of_these.any() and (logp - rollout.logp).abs()[of_these].max() < 1e-3


class InAWhile:
    """Has newer weights after half a second."""

    def __init__(self, weights):
        self.weights, self.steps, self.start = weights, 0, time.monotonic()
        self.all = [{name: w.detach().clone() for name, w in weights.items()}]

    @property
    def has_newer(self):
        return self.steps == 0 and time.monotonic() > self.start + 0.5

    @torch.no_grad()
    def take(self):
        for w in self.weights.values():
            w.add_(torch.randn(w.shape) * w.abs().mean())
        self.all.append({name: w.detach().clone() for name, w in self.weights.items()})
        self.steps = 1
