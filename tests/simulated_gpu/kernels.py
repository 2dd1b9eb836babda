"""What torch's attention for GPUs computes, and what it demands of memory, on a CPU."""
import math

import torch


def attention(q, k, v, bias, with_normaliser, dropout=0.0, causal=False, scale=None):
    assert with_normaliser and dropout == 0.0
    score = _wide(q) @ _wide(k).transpose(-1, -2) * scale + _bias(q, k, bias, causal)
    lse = torch.nn.functional.pad(score.logsumexp(-1), (0, -q.shape[2] % 32), value=math.inf)
    out = (score.softmax(-1) @ _wide(v)).to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)  # its layout there
    return out, lse, None, None


def attention_backward(grad, q, k, v, bias, out, lse, seed, offset, dropout, needed, causal=False, scale=None):
    assert dropout == 0.0 and needed == [True, True, True, False] and len({x.dtype for x in (grad, q, k, v, out)}) == 1
    assert lse.dtype in (torch.float32, torch.double) and lse.stride(1) % 8 == 0 and lse.stride(0) % 8 == 0
    assert out.transpose(1, 2).is_contiguous()  # else the kernels for half types read beside it, silently or to a crash
    dtype, (grad, q, k, v, out) = q.dtype, map(_wide, (grad, q, k, v, out))
    score = q @ k.transpose(-1, -2) * scale + _bias(q, k, bias, causal, dtype)
    weight = (score - lse[..., :q.shape[2], None]).exp()
    of_score = weight * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * scale
    found = of_score @ k, of_score.transpose(-1, -2) @ q, weight.transpose(-1, -2) @ grad
    return (*(x.to(dtype) for x in found), None)


def _wide(x):
    """In the type in which the kernel adds."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _bias(q, k, bias, causal, dtype=None):
    tokens = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    total = torch.zeros(tokens.shape, dtype=q.dtype)
    if causal:
        total = total.masked_fill(~tokens.tril(), -math.inf)
    if bias is not None:
        assert bias.dtype is (dtype or q.dtype) and bias.shape == (*q.shape[:3], k.shape[2])
        assert all(n % 8 == 0 for n in bias.stride()[:3])
        total = total + bias
    return total


def rounded_product(a, b, out_dtype):
    """A product with its sums, and its result, in another type."""
    return a.to(out_dtype) @ b.to(out_dtype)


def histogram(x, *args):
    return torch.histc(x.float(), *args).to(x.dtype)


class Norm(torch.autograd.Function):
    """One launch, and one backward that a GPU needs for the gradients of the argument and of the weight."""

    @staticmethod
    def forward(ctx, gpu, x, weight, eps):
        ctx.gpu, ctx.eps = gpu, eps
        ctx.save_for_backward(x, weight)
        with gpu.one_launch('_fused_rms_norm'):
            return _norm(x, weight, eps)

    @staticmethod
    def backward(ctx, grad):
        with ctx.gpu.one_launch('_fused_rms_norm_backward'), torch.enable_grad():
            x, weight = (x.detach().requires_grad_() for x in ctx.saved_tensors)
            return None, *torch.autograd.grad(_norm(x, weight, ctx.eps), (x, weight), grad), None


def _norm(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


aten = torch.ops.aten
# Operations that a CPU lacks, or has for fewer types.
OF_GPU = {
    aten._scaled_dot_product_efficient_attention.default: attention,
    aten._scaled_dot_product_efficient_attention_backward.default: attention_backward,
    aten.mm.dtype: rounded_product,
    aten.histc.default: histogram,
}
