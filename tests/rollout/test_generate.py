import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.rollout import Sampling, generate
from tests.model.helper import tokens_read

CPU = torch.device('cpu')
OPTIONS = [Sampling(), Sampling(0.8), Sampling(1.2, top_k=6), Sampling(0.9, top_k=10, top_p=0.7)]


def prompts_of(lengths, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 32, (n, ), generator=generator) for n in lengths]


def uniform_of(rows, length, seed=4):
    return torch.rand(rows, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.unittest
class TestGenerate:

    @pytest.mark.parametrize('sampling', OPTIONS, ids=str)
    def test_sampled_and_recomputed_log_probabilities_agree(self, tiny_model, sampling):
        prompts = prompts_of([4, 9, 9, 2])
        prompts[2] = prompts[1]
        batch = PromptBatch.of(prompts, CPU)
        out = generate(tiny_model, batch, 12, [29], sampling, uniform_of(4, 12))
        weight = (torch.arange(out.action.shape[1]) < out.length[:, None]).float()
        logit = tiny_model.completion_logits(batch, out.action.clamp(min=0))
        kept = out.kept
        if kept is not None:
            kept = torch.where((weight == 0)[..., None], 0, kept)
        logit, index = sampling.reuse(logit, out.action.clamp(min=0), kept)
        logp = logit.log_softmax(-1).gather(-1, index[..., None])[..., 0]
        assert torch.allclose(logp * weight, out.logp, atol=1e-5)

    def test_greedy_equals_transformers(self, tiny_model):
        prompts = prompts_of([3, 7, 5])
        out = generate(tiny_model, PromptBatch.of(prompts, CPU), 10, [29])
        for prompt, action, length in zip(prompts, out.action, out.length):
            peer = tiny_model.lm.generate(
                prompt[None],
                attention_mask=torch.ones(1, len(prompt)).long(),
                max_new_tokens=10,
                do_sample=False,
                eos_token_id=29,
                pad_token_id=30
            )[0, len(prompt):]
            assert action[:length].tolist() == peer.tolist()

    def test_a_row_depends_on_its_own_numbers_alone(self, tiny_model):
        prompts, uniform = prompts_of([4, 6, 6, 5, 3, 8]), uniform_of(6, 12)
        whole = generate(tiny_model, PromptBatch.of(prompts, CPU), 12, [29, 5, 6, 7], Sampling(), uniform)
        for i in (3, 0, 5):
            alone = generate(
                tiny_model, PromptBatch.of([prompts[i]], CPU), 12, [29, 5, 6, 7], Sampling(), uniform[i:i + 1]
            )
            n = int(whole.length[i])
            assert alone.length.item() == n
            assert torch.equal(alone.action[0, :n], whole.action[i, :n])
            assert torch.allclose(alone.logp[0, :n], whole.logp[i, :n], atol=1e-5)

    def test_ends_with_the_first_end_of_sequence(self, tiny_model):
        eos = [1, 2, 3, 4, 5, 6]  # six of 32 tokens, so that rows end at different times and leave the batch
        out = generate(tiny_model, PromptBatch.of(prompts_of([5] * 40), CPU), 12, eos, Sampling(), uniform_of(40, 12))
        assert len(set(out.length.tolist())) > 4
        for action, logp, length in zip(out.action, out.logp, out.length.tolist()):
            ended = torch.isin(action[:length], torch.tensor(eos))
            assert not ended[:-1].any() and (ended[-1] or length == 12)
            assert (action[length:] == -1).all() and (logp[length:] == 0).all() and (logp[:length] < 0).all()

    def test_rows_that_have_ended_leave_the_batch(self, tiny_model, decoded):
        eos = list(range(8))
        out = generate(tiny_model, PromptBatch.of(prompts_of([5] * 40), CPU), 12, eos, Sampling(), uniform_of(40, 12))
        still = [int((out.length > t + 1).sum()) for t in range(len(decoded))]  # rows that need step t
        assert decoded[-1] < 20 and all(need <= n <= max(need / 0.75, need + 1) for n, need in zip(decoded, still))

    def test_prompt_is_read_once_per_distinct_prompt(self, tiny_model):
        seen = tokens_read(tiny_model)
        prompt, other = prompts_of([6, 6])
        generate(tiny_model, PromptBatch.of([prompt] * 8 + [other] * 8, CPU), 3, [29], Sampling(), uniform_of(16, 3))
        assert seen == [12, 16, 16]  # two prompts of six tokens, then a token of each row

    def test_kept_ids_are_those_sampled_from(self, tiny_model):
        out = generate(
            tiny_model, PromptBatch.of(prompts_of([5] * 4), CPU), 6, [29], Sampling(top_k=5, top_p=0.5),
            uniform_of(4, 6)
        )
        real = torch.arange(out.action.shape[1]) < out.length[:, None]
        assert ((out.kept == out.action[..., None]).any(-1) == real).all()
