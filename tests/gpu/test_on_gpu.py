"""What only a GPU can show: `python -m tests.gpu`, which may set TEST_DEVICE."""
import copy
import os
from contextlib import contextmanager

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ding_grpo.model import PromptBatch
from ding_grpo.model.fused import fuse
from ding_grpo.model.read.attention import Options, Seen, flash, flash_backward, plain
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rl_utils.log_probs.matrix_product import rounded_product
from ding_grpo.rollout import Sampling, generate
from tests.model.helper import alone, gradient, learned, make, uniform
from tests.runs import distance, evaluations, state
from tests.shipped import load

pytestmark = pytest.mark.cudatest
REAL = 'TEST_DEVICE' not in os.environ  # otherwise small sizes, and no measured memory
DEVICE = torch.device('cpu' if os.environ.get('TEST_DEVICE') == 'cpu' else 'cuda')
SIZE = dict(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, max_position_embeddings=512)
MODELS = dict(
    llama=dict(SIZE, head_dim=64),
    qwen2=SIZE,
    gemma2=dict(SIZE, head_dim=64, sliding_window=4096),
    gpt2=dict(vocab_size=1000, n_embd=256, n_layer=4, n_positions=512),
    deepseek_v2=SIZE,
)
ROWS, TOKENS = 4, 32
TYPES = [
    (dict(), 1e-4),
    (dict(autocast='bfloat16'), 0.1),
    (dict(autocast='bfloat16', autocast_output=True), 0.1),
    (dict(dtype='bfloat16'), 0.2),
]
RECORDED = [(dict(options, cuda_graphs=True), most) for options, most in (TYPES[0], TYPES[2])]


def model_of(kind, **options):
    # Some versions of transformers ignore gemma2's soft cap in their default attention.
    attention = dict(attn_implementation='eager') if kind == 'gemma2' else {}
    model = make(kind, 1, MODELS[kind], **attention, **options).to(DEVICE)
    assert model.shares_prompts  # otherwise nothing of what is tested here would run
    return model


def prompts_of(lengths=(40, 17, 60)):
    """Prompts of these lengths with ``ROWS`` rows each: of each row, and as a batch."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 1000, (n, ), generator=generator).to(DEVICE) for n in lengths]
    rows = [prompt for prompt in prompts for _ in range(ROWS)]
    return rows, PromptBatch.of(rows, DEVICE)


@pytest.mark.parametrize(
    'kind, options, most', [
        *((kind, *of_type) for kind in MODELS for of_type in TYPES),
        *((kind, *of_type) for kind in ('llama', 'gemma2', 'gpt2') for of_type in RECORDED),
    ],
    ids=str
)
def test_sampler_and_learner_are_the_model(kind, options, most):
    model = model_of(kind, **options)
    rows, prompts = prompts_of()
    for eos in ((), range(50)):  # with rows that end and leave
        rollout = generate(model, prompts, TOKENS, eos, Sampling(), uniform(len(rows), TOKENS).to(DEVICE))
        action, counted = rollout.action.clamp(min=0), rollout.action >= 0
        with torch.no_grad():
            plain = alone(model, rows, action)[counted]
            again = learned(model, prompts, action, rollout.length)[counted]
        assert (rollout.logp[counted] - plain).abs().max() < most
        assert (again - plain).abs().max() < most
    assert model.uses_cuda_graphs == ('cuda_graphs' in options and DEVICE.type == 'cuda')


@pytest.mark.parametrize(
    'options, most', [(dict(), 1e-4), (dict(autocast='bfloat16'), 0.05)], ids=['float32', 'bfloat16']
)
@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_gradients_of_shared_prompts_are_those_of_plain_rows(kind, options, most):
    model = model_of(kind, **options)
    rows, prompts = prompts_of()
    action = torch.randint(3, 1000, (len(rows), TOKENS), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    slope = torch.linspace(-1, 1, action.numel(), device=DEVICE).view_as(action)
    each = learned(model, prompts, action), alone(model, rows, action)
    found = [gradient(model, logp * slope) for logp in each]
    assert (found[0] - found[1]).norm() < most * found[1].norm()


def test_products_of_bfloat16_with_sums_in_float32():
    a, b = (torch.randn(300, 200, device=DEVICE) for _ in range(2))
    exact = a.bfloat16().double() @ b.bfloat16().double().t()
    assert (rounded_product(a, b) - exact).abs().max() < 1e-3


@contextmanager
def taking_less_than(most):
    """What runs within takes less memory of a real GPU, in bytes."""
    if REAL:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    yield
    if REAL:
        assert torch.cuda.max_memory_allocated() - before < most


@pytest.mark.parametrize('rounded', [False, True])
def test_memory_of_the_output_layer_does_not_grow_with_the_vocabulary(rounded):
    """16,384 tokens at 152,000 ids: 9.3 GiB of logits in float32, of which tiles of 128 MiB exist at a time."""
    tokens, vocabulary = (16384, 152000) if REAL else (256, 5000)
    hidden = torch.randn(tokens, 64, device=DEVICE, requires_grad=True)
    weight = torch.randn(vocabulary, 64, device=DEVICE, requires_grad=True)
    index = torch.randint(vocabulary, (tokens, ), device=DEVICE)
    with taking_less_than(2 ** 30):
        linear_log_prob(hidden.unsqueeze(0), weight, index.unsqueeze(0), rounded=rounded).sum().backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_attention_equals_plain_attention_and_stores_no_scores(dtype):
    """4,096 queries and keys in 8 heads: 256 MiB of scores in bfloat16, 512 in float32."""
    tokens = 4096 if REAL else 256
    q, k, v, grad = (torch.randn(1, 8, tokens, 64, device=DEVICE).to(dtype) for _ in range(4))
    seen = Seen((torch.arange(tokens, device=DEVICE) < tokens - 7).view(1, 1, 1, -1))
    mask = seen.added(dtype)
    exact = [x.float().clone().requires_grad_() for x in (q, k, v)]
    wanted, normaliser = plain(*exact, seen, Options(0.1))
    wanted = [wanted.detach(), normaliser.detach(), *torch.autograd.grad(wanted, exact, grad.float())]
    with taking_less_than(2 ** 27):
        out, lse = flash(q, k, v, 0.1, mask)
        found = [out, lse, *flash_backward(grad, q, k, v, out, lse, 0.1, mask)]
    for a, b in zip(found, wanted):
        assert (a.float() - b).norm() <= (2e-3 if dtype is torch.float32 else 2e-2) * b.norm()  # GPUs may use TF32


def test_a_fused_norm_is_that_of_the_architecture():
    layer, own = LlamaRMSNorm(256).to(DEVICE), LlamaRMSNorm(256).to(DEVICE)
    torch.nn.init.uniform_(layer.weight, 0.5, 2)
    own.load_state_dict(layer.state_dict())
    fuse(torch.nn.Sequential(layer))
    results = []
    for norm in (layer, own):
        x = torch.linspace(-2, 3, 4096, device=DEVICE).view(1, 16, 256).requires_grad_()
        y = norm(x)
        y.sin().sum().backward()
        results.append((y, x.grad, norm.weight.grad))
    for found, wanted in zip(*results):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=2e-6 * wanted.abs().max().item())


def config_of(name, folder, monkeypatch, **changes):
    monkeypatch.chdir(folder)
    main, create = load(name, **changes)
    main.exp_name, main.policy.cuda = 'run', DEVICE.type == 'cuda'
    return main, create


@pytest.mark.parametrize('name, updates', [('think_answer_grpo', 150), ('cartpole_grpo', 60)])
def test_a_task_is_learned(tmp_path, monkeypatch, name, updates):
    main, create = config_of(name, tmp_path, monkeypatch)
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=updates)
    assert evaluations()[-1]['eval_episode_return'] >= main.env.stop_value


def test_stopped_and_resumed(tmp_path, monkeypatch):
    """On a GPU equal up to rounding: atomic additions take any order."""
    main, create = config_of('think_answer_grpo', tmp_path, monkeypatch, env=dict(stop_value=1e9))
    for name, stops in (('whole', [4]), ('run', [2, 4])):
        main.exp_name = name
        for i, stop in enumerate(stops):
            main.policy.learn.resume_training = i > 0
            serial_pipeline_onpolicy((copy.deepcopy(main), create), seed=0, max_train_iter=stop)
    a, b = (state(4, run)['model'] for run in ('whole', 'run'))
    assert distance(a, b) < (1e-4 if DEVICE.type == 'cuda' else 1e-12)
