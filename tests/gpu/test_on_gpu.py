"""What only a GPU can show: `python -m tests.gpu`, which may set TEST_DEVICE."""
import copy
import os

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ding_common import read_json_lines
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.fused import fuse
from ding_grpo.model.read.attention import Options, Seen, flash, flash_backward, plain
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rl_utils.log_probs.matrix_product import rounded_product
from ding_grpo.rollout import Sampling, generate
from tests.shipped import load

pytestmark = pytest.mark.cudatest
REAL = 'TEST_DEVICE' not in os.environ  # otherwise small sizes, and no measured memory
DEVICE = torch.device('cpu' if os.environ.get('TEST_DEVICE') == 'cpu' else 'cuda')
SHAPE = dict(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=512)
WIDE = dict(SHAPE, intermediate_size=512, num_key_value_heads=2)
EXPERTS = dict(
    SHAPE,
    intermediate_size=512,
    num_key_value_heads=4,
    kv_lora_rank=64,
    q_lora_rank=None,
    qk_rope_head_dim=32,
    qk_nope_head_dim=64,
    v_head_dim=64,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1
)
MODELS = dict(
    llama=WIDE,
    qwen2=WIDE,
    gemma2=dict(WIDE, head_dim=64),
    gpt2=dict(vocab_size=1000, n_embd=256, n_layer=4, n_head=4, n_positions=512),
    deepseek_v2=EXPERTS,
)
ROWS, TOKENS = 4, 32


def model_of(kind, **options):
    torch.manual_seed(0)
    # Some versions of transformers ignore gemma2's soft cap in their default attention.
    attention = dict(attn_implementation='eager') if kind == 'gemma2' else {}
    model = CausalLM(config=dict(MODELS[kind], model_type=kind), **attention, **options).to(DEVICE)
    assert model.shares_prompts  # otherwise nothing of what is tested here would run
    return model


def prompts_of(lengths=(40, 17, 60), vocabulary=1000):
    """Prompts of these lengths with ``ROWS`` rows each: of each row, and as a batch."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, vocabulary, (n, ), generator=generator) for n in lengths]
    rows = [prompt for prompt in prompts for _ in range(ROWS)]
    return rows, PromptBatch.of(rows, DEVICE)


def log_probs(model, prompts, action, length=None):
    hidden = model.completion_hidden(prompts, action, length)
    return linear_log_prob(hidden, index=action, **model.output_head()._asdict())


def plain_log_probs(model, rows, action):
    """Each row by itself, by plain ``transformers``."""
    found = []
    for prompt, tokens in zip(rows, action):
        ids = torch.cat([prompt.to(DEVICE), tokens]).unsqueeze(0)
        with model.arithmetic():
            logits = model.lm(ids, use_cache=False).logits[0, len(prompt) - 1:-1]
        found.append(logits.float().log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1))
    return torch.stack(found)


@pytest.mark.parametrize(
    'options, most', [
        (dict(), 1e-4),
        (dict(autocast='bfloat16'), 0.1),
        (dict(autocast='bfloat16', autocast_output=True), 0.1),
        (dict(dtype='bfloat16'), 0.2),
    ]
)
@pytest.mark.parametrize('kind', list(MODELS))
def test_sampler_and_learner_are_the_model(kind, options, most):
    model = model_of(kind, **options)
    rows, prompts = prompts_of()
    uniform = torch.rand(len(rows), TOKENS, dtype=torch.double, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    rollout = generate(model, prompts, TOKENS, (), Sampling(), uniform)
    with torch.no_grad():
        plain = plain_log_probs(model, rows, rollout.action)
        learned = log_probs(model, prompts, rollout.action, rollout.length)
    assert (rollout.logp - plain).abs().max() < most
    assert (learned - plain).abs().max() < most


@pytest.mark.parametrize(
    'options, most', [(dict(), 1e-4), (dict(autocast='bfloat16', autocast_output=True), 0.1)],
    ids=['float32', 'bfloat16']
)
@pytest.mark.parametrize('kind', ['llama', 'gemma2', 'gpt2'])
def test_steps_recorded_as_graphs_are_the_model(kind, options, most):
    model = model_of(kind, cuda_graphs=True, **options)
    rows, prompts = prompts_of()
    uniform = torch.rand(len(rows), TOKENS, dtype=torch.double, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    for eos in ((), range(50)):  # with rows that end and leave
        rollout = generate(model, prompts, TOKENS, eos, Sampling(), uniform)
        with torch.no_grad():
            learned = log_probs(model, prompts, rollout.action.clamp(min=0), rollout.length)
        assert (rollout.logp - learned.where(rollout.action >= 0, 0)).abs().max() < most
    assert model.uses_cuda_graphs == (DEVICE.type == 'cuda')


@pytest.mark.parametrize(
    'options, most', [(dict(), 1e-4), (dict(autocast='bfloat16'), 0.05)], ids=['float32', 'bfloat16']
)
@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_gradients_of_shared_prompts_are_those_of_plain_rows(kind, options, most):
    found, model = [], model_of(kind, **options)
    rows, prompts = prompts_of()
    action = torch.randint(3, 1000, (len(rows), TOKENS), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    slope = torch.linspace(-1, 1, action.numel(), device=DEVICE).view_as(action)
    for logp in (log_probs(model, prompts, action), plain_log_probs(model, rows, action)):
        model.zero_grad()
        (logp * slope).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert (found[0] - found[1]).norm() < most * found[1].norm()


def test_products_of_bfloat16_with_sums_in_float32():
    a, b = (torch.randn(300, 200, device=DEVICE) for _ in range(2))
    exact = a.bfloat16().double() @ b.bfloat16().double().t()
    assert (rounded_product(a, b) - exact).abs().max() < 1e-3


@pytest.mark.parametrize('rounded', [False, True])
def test_memory_of_the_output_layer_does_not_grow_with_the_vocabulary(rounded):
    """16,384 tokens at 152,000 ids: 9.3 GiB of logits in float32, of which tiles of 128 MiB exist at a time."""
    tokens, vocabulary = (16384, 152000) if REAL else (256, 5000)
    hidden = torch.randn(tokens, 64, device=DEVICE, requires_grad=True)
    weight = torch.randn(vocabulary, 64, device=DEVICE, requires_grad=True)
    index = torch.randint(vocabulary, (tokens, ), device=DEVICE)
    if REAL:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    linear_log_prob(hidden.unsqueeze(0), weight, index.unsqueeze(0), rounded=rounded).sum().backward()
    assert weight.grad.isfinite().all()
    if REAL:
        assert torch.cuda.max_memory_allocated() - before < 2 ** 30


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
    if REAL:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    out, lse = flash(q, k, v, 0.1, mask)
    found = [out, lse, *flash_backward(grad, q, k, v, out, lse, 0.1, mask)]
    for a, b in zip(found, wanted):
        assert (a.float() - b).norm() <= (2e-3 if dtype is torch.float32 else 2e-2) * b.norm()  # GPUs may use TF32
    if REAL:
        assert torch.cuda.max_memory_allocated() - before < 2 ** 27


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


def test_think_answer_is_learned(tmp_path, monkeypatch):
    main, create = config_of('think_answer_grpo', tmp_path, monkeypatch)
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=150)
    last = read_json_lines('run/log/evaluator/evaluations.jsonl')[-1]
    assert last['eval_episode_return'] == 1


def test_cartpole_is_learned(tmp_path, monkeypatch):
    main, create = config_of('cartpole_grpo', tmp_path, monkeypatch)
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=60)
    last = read_json_lines('run/log/evaluator/evaluations.jsonl')[-1]
    assert last['eval_episode_return'] >= main.env.stop_value


def test_stopped_and_resumed(tmp_path, monkeypatch):
    """On a GPU equal up to rounding: atomic additions take any order."""
    main, create = config_of('think_answer_grpo', tmp_path, monkeypatch, env=dict(stop_value=1e9))
    for name, stops in (('whole', [4]), ('run', [2, 4])):
        main.exp_name = name
        for i, stop in enumerate(stops):
            main.policy.learn.resume_training = i > 0
            serial_pipeline_onpolicy((copy.deepcopy(main), create), seed=0, max_train_iter=stop)
    a, b = (torch.load(f'{r}/ckpt/iteration_4.pth.tar', weights_only=True)['model'] for r in ('whole', 'run'))
    assert max((a[name] - b[name]).abs().max().item() for name in a) < (1e-4 if DEVICE.type == 'cuda' else 1e-12)
