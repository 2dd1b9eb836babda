"""The engine computes what examples/grpo.py specifies, to 1e-9 in float64."""
import copy
import random

import pytest
import torch

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import efficient_method, group_advantage, less_efficient_method, linear_log_prob, naive_method

from .engine import WORDS, Engine, batch_of, disturb, example, make_model

CLOSE = dict(rtol=0, atol=1e-9)
SEEDS = (0, 1)
GROUP = 4  # rows of a group
# (max_tokens, options of the example): of completions of at most two tokens, most are cut
SETTINGS = {
    'plain': (6, dict()),
    'cut': (2, dict()),
    'kl': (6, dict(beta=0.1)),
    'clip': (6, dict(clip=0.02)),
    'clip, kl, epochs': (4, dict(clip=0.02, beta=0.1, epochs=3)),
    'mini-batches': (6, dict(batch=2, epochs=2, beta=0.1)),
}


def close(a, b):
    return torch.allclose(a.double(), b.double(), **CLOSE)


def of_engine(options):
    """Keys of ``policy.learn`` for the example's options."""
    return dict(
        batch_groups=options.batch,
        epoch_per_collect=options.epochs,
        learning_rate=options.rate,
        clip=dict(ratio=options.clip),
        kl=dict(beta=options.beta),
        grad_clip_value=options.max_norm,
        lr_scheduler=dict(type='linear', num_training_steps=options.updates),
    )


def rewards(seed):
    """A function of (group, row) in quarters; all rows of group 1 are equal, at a number that means round."""
    source = random.Random(seed)
    table = [[source.randrange(9) / 4 for _ in range(GROUP)] for _ in WORDS]
    table[1] = [0.1] * GROUP
    return lambda group, row: table[group][row]


def make(seed, max_tokens=6, kind='llama', size=0.01, **options):
    """Engine and example with the same weights and completions; both have moved since these were sampled."""
    options = example.Options(**dict(dict(group=GROUP, batch=len(WORDS), rate=1e-2, updates=10, beta=0.0), **options))
    model = make_model(seed, kind)
    reference = copy.deepcopy(model).requires_grad_(False)
    engine = Engine(model, GROUP, max_tokens, seed, **of_engine(options))
    samples = engine.collect(rewards(seed))
    disturb(model, seed, size)
    return engine, samples, model, copy.deepcopy(model), reference, options


@pytest.fixture(scope='module', params=SEEDS)
def rows(request):
    """(model, batch, groups): ragged prompts and completions, some of them cut."""
    engine, samples, model, *_ = make(request.param, kind='qwen2' if request.param == 1 else 'llama')
    batch = batch_of(samples)
    length, last = batch.mask.sum(1), batch.completion.gather(1, batch.mask.sum(1, keepdim=True) - 1)
    assert len(length.unique()) > 2 and 0 < (last == example.END).sum() < len(last)
    return model, batch, torch.arange(len(WORDS)).repeat_interleave(GROUP)


class TestFunctions:

    def test_log_probs_and_their_gradients(self, rows):
        model, batch, _ = rows
        expected = example.completion_logp(model, batch)  # (B, S)
        slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).double() * batch.mask
        weights = list(model.parameters())
        gradients = torch.autograd.grad((expected * slope).sum(), weights)
        lm, length = CausalLM.from_model(model), batch.mask.sum(1)
        prompts = PromptBatch.of([p[m == 1] for p, m in zip(batch.prompt, batch.prompt_mask)], lm.device)
        states = lm.completion_states(prompts, batch.completion, length)
        head = lm.output_head()._asdict()
        found = [linear_log_prob(states.hidden, state=states.state, index=batch.completion, mask=batch.mask, **head)]
        for function in (efficient_method, naive_method, less_efficient_method):
            logit = lm.completion_logits(prompts, batch.completion, length)
            found.append(function(logit, batch.completion))
        for logp in found:
            assert close(logp * batch.mask, expected * batch.mask)
            for a, b in zip(torch.autograd.grad((logp * slope).sum(), weights), gradients):
                assert close(a, b)

    def test_advantages(self, rows):
        _, batch, group = rows
        adv = group_advantage(batch.reward, group)
        assert close(adv, batch.adv) and adv.unique().numel() > 4
        assert not adv[group == 1].any() and not batch.adv[group == 1].any()  # exactly


class TestPolicy:

    @pytest.mark.parametrize('setting', SETTINGS)
    @pytest.mark.parametrize('seed', SEEDS)
    def test_updates(self, seed, setting):
        """Two whole updates, with the schedule; gradients are those of the last step, after clipping."""
        max_tokens, changes = SETTINGS[setting]
        engine, samples, model, own, reference, options = make(seed, max_tokens, **changes)
        batch, generator = batch_of(samples), torch.Generator().manual_seed(seed)
        optimizer = torch.optim.AdamW(own.parameters(), lr=options.rate, weight_decay=0.0)
        for number in range(2):
            before = [p.detach().clone() for p in own.parameters()]
            expected = example.update(own, reference, optimizer, batch, options, number, generator)
            metrics = engine.learn(samples)
            assert metrics['cur_lr'] == pytest.approx(1e-2 * (1 - number / 10))
            assert metrics['total_loss'] == pytest.approx(expected['loss'], abs=1e-9)
            assert metrics['grad_norm'] == pytest.approx(expected['grad_norm'], abs=1e-9)
            assert metrics['clipfrac'] == pytest.approx(expected['clipfrac'], abs=1e-9)
            assert metrics.get('kl', 0.) == pytest.approx(expected['kl'], abs=1e-9)
            for old, p, q in zip(before, own.parameters(), model.parameters()):
                assert not torch.equal(old, p) and close(p, q) and close(p.grad, q.grad)
        assert metrics['clipfrac'] > 0.2 or options.clip > 0.1
        assert metrics['kl'] > 1e-3 if options.beta > 0 else 'kl' not in metrics

    @pytest.mark.parametrize('seed', SEEDS)
    def test_sampler(self, seed):
        """Log-probabilities of sampled tokens, and greedy completions."""
        engine, samples, model, *_ = make(seed, size=0)
        batch = batch_of(samples)
        assert close(batch.logp_old, example.completion_logp(model, batch) * batch.mask)
        completion, mask, logp = example.sample(model, *example.pad_prompts(WORDS), 6)
        assert [row[:n].tolist() for row, n in zip(completion, mask.sum(1))] == engine.greedy()
