"""Models of one architecture share the trial of how rows are read; others have their own."""
import pytest
import torch

from ding_grpo.model import CausalLM, reader


@pytest.mark.unittest
def test_a_second_model_of_the_architecture_needs_none(tiny_config, monkeypatch):
    trials, choose = [], reader.choose
    monkeypatch.setattr(reader, 'choose', lambda model, longest: trials.append(model) or choose(model, longest))
    first, second = CausalLM(config=dict(tiny_config)), CausalLM(config=dict(tiny_config))
    assert first.reading == second.reading == 'shared' and trials == [first]
    ids = torch.arange(3, 12).unsqueeze(0)
    assert second.lm.config._attn_implementation == first.lm.config._attn_implementation  # that of shared prompts
    assert torch.isfinite(second.lm(ids).logits).all()
    others = [CausalLM(config=dict(tiny_config, num_hidden_layers=1)), CausalLM(config=dict(tiny_config))]
    others[1].limit_length(20)
    assert [model.reading for model in others] == ['shared', 'shared'] and trials == [first, *others]


@pytest.mark.unittest
def test_weights_without_a_trial_leave_none_behind(tiny_config):
    broken = CausalLM(config=dict(tiny_config))
    with torch.no_grad():
        next(broken.parameters()).fill_(float('nan'))
    assert broken.reading == 'padded' and CausalLM(config=dict(tiny_config)).reading == 'shared'
