"""What the trial of one model says about others: resumed ones, those of its architecture, and longer rows."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.model import PromptBatch
from ding_grpo.model.trial.architecture import RESULTS
from ding_grpo.model.trial.length_limit import length_limit
from ding_grpo.rl_utils import naive_method
from ding_grpo.rollout import Sampling, generate
from tests.model.helper import CPU, alone, make, modules_called, uniform

pytestmark = pytest.mark.usefixtures('each_model_has_its_trial')


def failing(error):
    """A model that fails to read packed rows, and the hook that makes it fail."""
    model = make('llama')
    model.output_head()  # its measurement reads one row too

    def fail(module, args, output):
        if len(args[0]) == 1:
            raise error

    return model, model.lm.get_input_embeddings().register_forward_hook(fail)


class TestCheckpoint:

    def test_carries_the_choice(self):
        state = make('llama').way_state()
        assert state['way'] == 'shared'
        RESULTS.clear()
        model = make('llama')
        model.load_way_state(state)
        with modules_called() as called:
            assert model.shares_prompts and called == []
        batch = PromptBatch.of([torch.arange(n) for n in (9, 9, 4)], CPU)
        assert generate(model, batch, 3, (), Sampling(), uniform(3, 3)).logp.isfinite().all()

    @pytest.mark.parametrize('memory', [torch.OutOfMemoryError('CUDA out of memory'), MemoryError()], ids=repr)
    def test_a_trial_that_runs_out_of_memory_says_nothing(self, memory):
        """The slow way was chosen, and kept in the checkpoint for ever."""
        model, hook = failing(memory)
        with pytest.raises(ConfigError, match='out of memory while trying how the model can be read'):
            model.way
        hook.remove()
        assert model.way == 'shared'

    def test_an_unknown_exception_is_told_and_tried_again_at_resume(self, capsys):
        model, _ = failing(RuntimeError('a passing fault'))
        assert model.way == 'padded' and 'a passing fault' in capsys.readouterr().out
        resumed = make('llama')
        resumed.load_way_state(model.way_state())
        assert resumed.way == 'shared' and make('falcon').way_state()['way'] == 'padded'

    @pytest.mark.parametrize('change', [dict(transformers='5.0'), dict(longest=7), dict(attention='eager')], ids=str)
    def test_is_not_asked_when_something_else_has_changed(self, change):
        state = dict(make('llama').way_state(), way='padded')
        model = make('llama')
        model.load_way_state(dict(state, **change))
        assert model.way == 'shared'
        model.load_way_state(state)
        assert model.way == 'padded'


class TestLength:
    """A trial of a few tokens says nothing of masks and positions in long rows; these are looked at by themselves."""

    @pytest.mark.parametrize('tokens, way', [(12, 'shared'), (13, 'padded')])
    def test_a_mask_in_chunks(self, tokens, way):
        model = make('llama4_text', 1, dict(attention_chunk_size=12, attn_temperature_tuning=False))
        model.limit_length(tokens)
        assert model.way == way

    def test_a_window_longer_than_the_trial(self):
        model = make('mistral', 1, dict(sliding_window=40))
        model.limit_length(100)
        assert model.way == 'shared'
        row, completion = torch.randint(0, 40, (60, )), torch.randint(0, 40, (2, 20))
        found = naive_method(model.completion_logits(PromptBatch.of([row, row], CPU), completion), completion)
        assert torch.allclose(found, alone(model, [row, row], completion), atol=2e-5)

    @pytest.mark.parametrize(
        'name, kind', [('phi3 (longrope rotary)', 'longrope'), ('llama (dynamic rotary)', 'dynamic')]
    )
    def test_factors_that_change_with_the_longest_row_of_a_batch(self, name, kind):
        model = make(name, 1)
        reason, most = length_limit(model.lm.config)
        assert most == 12 and kind in reason
        model.limit_length(12)
        batch, five = PromptBatch.of([torch.arange(8)] * 2, CPU), torch.ones(2, 5, dtype=torch.long)
        assert model.completion_hidden(batch, five[:, :4]).isfinite().all()
        for call in (
                lambda: model.limit_length(13),
                lambda: model.completion_hidden(batch, five),
                lambda: model.completion_logits(batch, five),
                lambda: generate(model, batch, 5, ()),
        ):
            with pytest.raises(ConfigError, match='beyond 12 tokens.*may have 13.*env.max_new_tokens'):
                call()

    def test_more_keys_than_are_selected(self):
        """A trial of few tokens selects all keys."""
        model = make('doge (no window)', 1, dict(keep_window_size=20))
        assert model.way == 'padded'
        model.limit_length(20)
        with pytest.raises(ConfigError, match='keep_window_size = 20 .* beyond 20 tokens.*may have 21'):
            model.limit_length(21)


def tries(model):
    """Whether finding its way, or its output layer, runs the model."""
    with modules_called() as called:
        model.way, model.output_head()
    return model.lm in called


class TestOfOneArchitecture:
    """Its models share the trial, and the measurement of the output layer."""

    def test_a_second_model_needs_none(self):
        first, second = make('llama'), make('llama')
        assert [tries(model) for model in (first, second)] == [True, False] and first.way == second.way == 'shared'
        assert torch.isfinite(second.lm(torch.arange(3, 12).unsqueeze(0)).logits).all()
        others = [make('llama', change=dict(num_hidden_layers=1)), make('llama')]
        others[1].limit_length(20)
        assert [tries(model) for model in others] == [True, True]

    def test_a_changed_model_is_no_other_of_its_architecture(self):
        """It neither takes the result of a plain one, nor leaves one behind."""
        plain, hooked, patched = (make('llama') for _ in range(3))
        assert plain.output_head().scale == 1 and plain.way == 'shared'
        hooked.lm.lm_head.register_forward_hook(lambda module, args, output: output * 2)
        forward = patched.lm.forward
        patched.lm.forward = lambda *args, **kwargs: forward(*args, **kwargs)
        with pytest.raises(ConfigError, match='do not give its logits'):
            hooked.output_head()
        assert (hooked.way, patched.way) == ('padded', 'shared')
        third = make('llama')
        assert third.output_head().scale == 1 and third.way == 'shared' and not tries(third)
