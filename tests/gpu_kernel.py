"""What torch's attention for GPUs computes, and what it demands of memory, on a CPU."""
import math

import torch

from ding_grpo.model import shared_attention


def attention(q, k, v, bias, with_normaliser, dropout, causal, scale=None):
    assert with_normaliser and dropout == 0.0
    score = q @ k.transpose(-1, -2) * scale + _bias(q, k, bias, causal)
    lse = torch.nn.functional.pad(score.logsumexp(-1), (0, -q.shape[2] % 32), value=math.inf)
    return score.softmax(-1) @ v, lse, None, None


def attention_backward(grad, q, k, v, bias, out, lse, seed, offset, dropout, needed, causal, scale=None):
    assert dropout == 0.0 and needed == [True, True, True, False] and len({x.dtype for x in (grad, q, k, v, out)}) == 1
    assert lse.dtype in (torch.float32, torch.double) and lse.stride(1) % 8 == 0 and lse.stride(0) % 8 == 0
    score = q @ k.transpose(-1, -2) * scale + _bias(q, k, bias, causal)
    weight = (score - lse[..., :q.shape[2], None]).exp().to(q.dtype)
    of_score = weight * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * scale
    return of_score @ k, of_score.transpose(-1, -2) @ q, weight.transpose(-1, -2) @ grad, None


def _bias(q, k, bias, causal):
    tokens = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    total = torch.zeros(tokens.shape, dtype=q.dtype)
    if causal:
        total = total.masked_fill(~tokens.tril(), -math.inf)
    if bias is not None:
        assert bias.dtype is q.dtype and bias.shape == (*q.shape[:3], k.shape[2])
        assert all(n % 8 == 0 for n in bias.stride()[:3])
        total = total + bias
    return total


def use(monkeypatch):
    """Tensors count as a GPU's, and these functions as its kernels."""
    monkeypatch.setattr(shared_attention, 'on_device', lambda x, kind: kind == 'cuda')
    monkeypatch.setattr(shared_attention, 'of_gpu', attention)
    monkeypatch.setattr(shared_attention, 'of_gpu_backward', attention_backward)
