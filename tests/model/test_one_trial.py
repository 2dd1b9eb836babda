"""Models of one architecture share the trial of how rows are read, and the measurement of the output layer."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.model import CausalLM, output_head, reader


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


@pytest.mark.unittest
def test_a_second_output_layer_of_the_architecture_is_not_measured(tiny_config, monkeypatch):
    measured, measure = [], output_head._measure
    monkeypatch.setattr(output_head, '_measure', lambda lm, *args: measured.append(lm) or measure(lm, *args))
    scaled = dict(tiny_config, model_type='granite', logits_scaling=4.0)
    models = [CausalLM(config=dict(config)) for config in (tiny_config, tiny_config, scaled, scaled)]
    assert [model.output_head().scale for model in models] == [1, 1, 0.25, 0.25]
    assert measured == [models[0].lm, models[2].lm]
    CausalLM(config=dict(tiny_config), dtype='bfloat16').output_head()
    assert len(measured) == 3


@pytest.mark.unittest
def test_a_changed_model_is_no_other_of_its_architecture(tiny_config, monkeypatch):
    """It neither takes the result of a plain one, nor leaves one behind."""
    plain, hooked, patched = (CausalLM(config=dict(tiny_config)) for _ in range(3))
    assert plain.output_head().scale == 1 and plain.reading == 'shared'
    hooked.lm.lm_head.register_forward_hook(lambda module, args, output: output * 2)
    forward = patched.lm.forward
    patched.lm.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    with pytest.raises(ConfigError, match='do not give its logits'):
        hooked.output_head()
    trials, choose = [], reader.choose
    monkeypatch.setattr(reader, 'choose', lambda model, longest: trials.append(model) or choose(model, longest))
    assert (hooked.reading, patched.reading) == ('padded', 'shared') and trials == [hooked, patched]
    third = CausalLM(config=dict(tiny_config))
    assert third.output_head().scale == 1 and third.reading == 'shared' and len(trials) == 2
