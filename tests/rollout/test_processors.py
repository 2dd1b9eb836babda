"""The sampling distribution against the logits processors of transformers, in their order."""
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from ding_grpo.rollout import Sampling, draw
from ding_grpo.rollout import sampling as module

ROWS = 6
ALONE = [
    {
        name: value
    } for name, values in dict(
        temperature=[0.6],
        top_k=[7],
        top_p=[0.8, 0.99],
        min_p=[0.1, 1.0],
        typical_p=[0.7, 0.99],
        repetition_penalty=[1.7, 0.6],
        logit_bias=[True],
        allowed_tokens=[True],
    ).items() for value in values
]
ALL = dict(temperature=1.4, top_p=0.95, min_p=0.004, typical_p=0.9, repetition_penalty=1.4)
ALL.update(logit_bias=True, allowed_tokens=True)
TOGETHER = [
    ALL,
    dict(ALL, top_k=40),
    dict(temperature=0.5, top_p=0.7, min_p=0.3),
    dict(top_k=20, min_p=0.1, typical_p=0.8),
    dict(top_k=5, allowed_tokens=True),
]


class Given(LlamaForCausalLM):
    """A model whose logits are given."""

    def forward(self, input_ids, **kwargs):
        return CausalLMOutput(logits=self.logit[:, None].clone())


def of_transformers(logit, context, bias, allowed, options):
    """The probabilities that ``generate`` samples from."""
    options = dict(dict(top_k=0), **options)
    if options.pop('logit_bias', False):
        options['sequence_bias'] = [[[i], b] for i, b in enumerate(bias.tolist()) if b]
    if options.pop('allowed_tokens', False):
        options['prefix_allowed_tokens_fn'] = lambda row, ids: allowed[row].nonzero()[:, 0].tolist()
    shape = dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    lm = Given(LlamaConfig(vocab_size=logit.shape[1], **shape))
    lm.logit = logit
    return lm.generate(
        context,
        attention_mask=torch.ones_like(context),
        do_sample=True,
        use_cache=False,
        max_new_tokens=1,
        output_scores=True,
        return_dict_in_generate=True,
        **options
    ).scores[0].softmax(-1)


@pytest.mark.parametrize(
    'options, size, spread', [
        *((options, 50, 1.) for options in ALONE + TOGETHER),
        *((options, 4000, spread) for spread in (0.3, 4.) for options in (*ALONE[2:8], ALL)),
    ],
    ids=str
)
def test_probabilities_are_those_of_transformers(options, size, spread):
    generator = torch.Generator().manual_seed(0)
    logit = spread * torch.randn(ROWS, size, generator=generator)
    context = torch.randint(0, size, (ROWS, 20), generator=generator)
    bias = torch.randn(size, generator=generator) * (torch.rand(size, generator=generator) < 0.3)
    allowed = torch.rand(ROWS, size, generator=generator) < 0.5
    expected = of_transformers(logit, context, bias, allowed, options)

    ours = dict(options)
    ours.pop('allowed_tokens', None)
    if ours.pop('logit_bias', False):
        ours['logit_bias'] = bias
    seen = torch.zeros(ROWS, size, dtype=torch.bool).scatter(1, context, True)
    distribution, kept = Sampling(**ours).restrict(logit, seen, allowed if 'allowed_tokens' in options else None)
    found = distribution.softmax(-1)
    if kept is not None and kept.dtype == torch.long:
        found = torch.zeros_like(logit).scatter_add(1, kept.clamp(min=0), found * (kept >= 0))
    elif kept is not None:
        assert torch.equal(kept, distribution > float('-inf'))
    assert (found - expected).abs().max() <= 1e-6
    assert torch.equal(found > 0, expected > 0) and (found > 0).any(1).all()
    assert options in ALONE[:1] + ALONE[8:11] or (found == 0).any()  # something is restricted


@pytest.mark.parametrize('options', [dict(top_p=0.97), dict(typical_p=0.97)], ids=str)
def test_a_row_keeps_the_same_whatever_the_other_rows_need(options):
    # A flat row needs a larger window, in which the others are searched again.
    generator = torch.Generator().manual_seed(0)
    sharp, flat = 5 * torch.randn(3, 5000, generator=generator), 0.1 * torch.randn(1, 5000, generator=generator)
    sampling = Sampling(**options)
    _, alone = sampling.restrict(sharp)
    _, beside = sampling.restrict(torch.cat([sharp, flat]))
    assert beside[3].sum() > module.WINDOW > alone.sum(1).max() > 1
    assert torch.equal(alone, beside[:3])


@pytest.mark.parametrize('options', [dict(top_p=1.0), dict(typical_p=1.0), dict(repetition_penalty=1.0)], ids=str)
def test_a_value_that_restricts_nothing_stores_nothing(options):
    logit = torch.randn(3, 40)
    found, kept = Sampling(**options).restrict(logit)
    assert kept is None and torch.equal(found, logit)


@pytest.mark.parametrize('options', ALONE[2:8] + [ALL], ids=str)
def test_nan_stays_visible(options):
    logit = torch.zeros(2, 40)
    logit[1, 3] = float('nan')
    options = {key: value for key, value in options.items() if key not in ('logit_bias', 'allowed_tokens')}
    seen = torch.zeros(2, 40, dtype=torch.bool)
    _, logp = draw(Sampling(**options).restrict(logit, seen)[0], torch.full((2, ), 0.5, dtype=torch.float64))
    assert logp.isnan().tolist() == [False, True]
