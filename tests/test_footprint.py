"""The formula for memory, beside the bytes that a simulated GPU counts."""
import pytest
import torch

from ding_grpo.check import _by_formula
from ding_grpo.data import micro_batch
from ding_grpo.data.batch import Batch
from ding_grpo.footprint import footprint
from ding_grpo.model import CausalLM
from dizoo_llm.envs import TokenEnv
from tests.cases import long
from tests.policies import reward, sample_groups, token_policy

CONFIG = dict(
    model_type='llama',
    vocab_size=64,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
MODEL = dict(config=CONFIG)
LONG = ('adapters', 'SGD', 'states on the host', 'with a reference', 'checkpointing', 'in one part')
POINTS = {
    'all weights': (MODEL, dict()),
    'in one part': (MODEL, dict(micro_batch_tokens=None)),
    'checkpointing': (dict(MODEL, gradient_checkpointing=True), dict()),
    'with a reference': (MODEL, dict(kl=dict(beta=0.1))),
    'SGD': (MODEL, dict(optimizer=dict(type='SGD'))),
    'states on the host': (MODEL, dict(optimizer=dict(type='AdamW', offload=True))),
    'adapters': (dict(lora=dict(r=8, target_modules='all-linear')), dict()),
}


@pytest.mark.parametrize('point', [long(name) if name in LONG else name for name in POINTS])
def test_what_is_counted(point, gpu, tmp_path):
    (model, learn), base = POINTS[point], None
    if point == 'adapters':
        pytest.importorskip('peft')
        base = tmp_path
        CausalLM(config=CONFIG).save_pretrained(str(base), TokenEnv(max_new_tokens=6).token_spec.tokenizer)
    learn = dict(dict(micro_batch_tokens=100), **learn)
    # Digests keep up to 16 KB of each gradient during an update: nearly all of tensors as small as these.
    small = dict(cuda=True, group_size=16, model=model, instruments=dict(digests=False))
    policy = token_policy(small, base=base, **learn)
    for number in range(2):  # the first makes the optimizer's state
        groups = sample_groups(policy, collect=number, reward=reward)
        gpu.counts.reset()
        policy.learn_mode.forward(groups)
    tokens = sum(len(group['prompt']) for group in groups) + int((Batch.of(groups).length - 1).sum())
    found = footprint(
        policy.model,
        learn['micro_batch_tokens'] or tokens,
        optimizer=policy.cfg.learn.optimizer,
        reference='kl' in learn,
        divided=learn['micro_batch_tokens'] is not None
    )
    assert found.total == pytest.approx(gpu.counts.peak, rel=0.1)


def test_keys_of_sampling(gpu):
    policy = token_policy(dict(cuda=True, group_size=64, model=MODEL))
    before = gpu.counts.live
    gpu.counts.reset()
    sample_groups(policy, reward=reward)
    most, found = gpu.counts.peak - before, footprint(policy.model, 1, 64, 16)
    assert found.keys <= most <= 1.5 * found.keys  # room for 16 tokens, prompts and logits


def test_a_processor_keeps_keys_of_half_types_in_float32():
    with torch.device('meta'):
        other = CausalLM(config=CONFIG, dtype='bfloat16')
    half, whole = (CausalLM(config=CONFIG, dtype=dtype) for dtype in ('bfloat16', 'float32'))
    found = [footprint(model, 1, 64, 16).keys for model in (half, whole, other)]
    assert found[0] == found[1] == 2 * found[2]


def test_other_architectures_have_no_formula():
    gpt2 = CausalLM(config=dict(model_type='gpt2', vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    experts = CausalLM(config=dict(CONFIG, model_type='mixtral', num_local_experts=2, num_experts_per_tok=1))
    assert footprint(gpt2, 100) is footprint(experts, 100) is None
    assert footprint(CausalLM(config=CONFIG), 100, optimizer=dict(type='module:Class')) is None


def test_what_an_optimizer_keeps():
    model = CausalLM(config=CONFIG)
    found = [footprint(model, 100, optimizer=dict(type='SGD', momentum=m)) for m in (0, 0.9)]
    assert found[0].optimizer == 0 and found[1].optimizer == found[1].gradients > 0


def test_the_check_counts_the_tokens_that_are_read_at_a_time(monkeypatch):
    """'auto' divides a mini-batch, but not one with pairs of a preference."""
    monkeypatch.setattr(micro_batch, 'AT_ONCE', 40)
    told = []
    for learn in (dict(), dict(preference=dict(weight=1.)), dict(micro_batch_tokens=None)):
        policy = token_policy(batch_groups=3, **learn)
        line, = _by_formula(policy, sample_groups(policy, [0, 1, 2], reward=reward))
        told.append(int(line.partition(' for ')[2].partition(' tokens')[0]))
    assert told[0] < told[1] == told[2]
