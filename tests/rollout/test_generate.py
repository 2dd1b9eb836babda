import torch

from ding_grpo.model import PromptBatch
from ding_grpo.rollout import Sampling, generate

CPU = torch.device('cpu')


def prompts_of(lengths, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 32, (n, ), generator=generator) for n in lengths]


def uniform_of(rows, length, seed=4):
    return torch.rand(rows, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class TestGenerate:

    def test_a_row_depends_on_its_own_numbers_alone(self, tiny_model):
        prompts, uniform = prompts_of([4, 6, 6, 5, 3, 8]), uniform_of(6, 12)

        def sampled(rows):
            return generate(
                tiny_model, PromptBatch.of(prompts[rows], CPU), 12, [29, 5, 6, 7], Sampling(), uniform[rows]
            )

        whole = sampled(slice(6))
        for i in (3, 0, 5):
            alone = sampled(slice(i, i + 1))
            n = int(whole.length[i])
            assert alone.length.item() == n
            assert torch.equal(alone.action[0, :n], whole.action[i, :n])
            assert torch.allclose(alone.logp[0, :n], whole.logp[i, :n], atol=1e-5)

    def test_rows_end_with_the_first_end_of_sequence_and_leave_the_batch(self, tiny_model, decoded):
        eos = [1, 2, 3, 4, 5, 6]  # six of 32 tokens, so that rows end at different times and leave the batch
        out = generate(tiny_model, PromptBatch.of(prompts_of([5] * 40), CPU), 12, eos, Sampling(), uniform_of(40, 12))
        assert len(set(out.length.tolist())) > 4
        for action, logp, length in zip(out.action, out.logp, out.length.tolist()):
            ended = torch.isin(action[:length], torch.tensor(eos))
            assert not ended[:-1].any() and (ended[-1] or length == 12)
            assert (action[length:] == -1).all() and (logp[length:] == 0).all() and (logp[:length] < 0).all()
        still = [int((out.length > t + 1).sum()) for t in range(len(decoded) - 1)]  # rows that need step t
        assert decoded[-1] < 20 and all(need <= n <= max(need / 0.75, need + 1) for n, need in zip(decoded[1:], still))

    def test_prompt_is_read_once_per_distinct_prompt(self, tiny_model, decoded):
        prompt, other = prompts_of([6, 6])
        generate(tiny_model, PromptBatch.of([prompt] * 8 + [other] * 8, CPU), 3, [29], Sampling(), uniform_of(16, 3))
        assert decoded == [12, 16, 16]  # two prompts of six tokens, then a token of each row
