"""examples/grpo.py by itself: what it needs, its task, its masks, and that it learns."""
import ast
import sys

import pytest
import torch

from tests.processes import Process, run_program

from .engine import PATH, disturb, example


class TestFile:

    def test_has_300_lines(self):
        with open(PATH) as f:
            assert len(f.readlines()) <= 300

    def test_imports_torch_and_transformers_alone(self):
        with open(PATH) as f:
            nodes = list(ast.walk(ast.parse(f.read())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        assert {name.split('.')[0] for name in names} - set(sys.stdlib_module_names) == {'torch', 'transformers'}


class TestTask:

    def test_no_word_with_the_letters_of_a_held_out_word_is_trained(self):
        trained, held_out = example.split_words()
        assert len(set(trained)) == 168 and len(set(held_out)) == 42
        assert not {frozenset(word) for word in trained} & {frozenset(word) for word in held_out}
        assert {len(word) for word in held_out} == {2, 3, 4, 5}
        assert example.split_words() == (trained, held_out)

    @pytest.mark.parametrize(
        'completion, ended, reward', [
            ('abcd', True, 2),
            ('abcd', False, 1),
            ('abdc', True, 0.5),
            ('abcdef', True, 4 / 6),
            ('=abcd', True, 0),
            ('abcd=', True, 4 / 5),
            ('ab', True, 0.5),
            ('bacd', True, 0.5),
            ('', True, 0),
        ]
    )
    def test_rewards(self, completion, ended, reward):
        assert example.reward_of('dbca', completion, ended) == reward

    def test_prompts_are_padded_on_the_left(self):
        ids, mask = example.pad_prompts(['cab', 'ba'])
        a, b, c = example.encode('abc')
        assert ids.tolist() == [[c, a, b, example.IDS['=']], [example.PAD, b, a, example.IDS['=']]]
        assert mask.tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]


class TestNumbers:

    def test_advantages(self):
        # mean 1, deviations -1, 0, 1: unbiased variance (1 + 0 + 1) / 2 = 1
        reward = torch.tensor([[0., 1., 2.], [0.1, 0.1, 0.1]], dtype=torch.double)
        expected = torch.tensor([[-1 / 1.0001, 0, 1 / 1.0001], [0, 0, 0]], dtype=torch.double)
        assert torch.allclose(example.group_advantage(reward), expected, rtol=0, atol=1e-12)
        many = torch.full((1, 16), 0.1)  # the mean of these rounds
        assert not example.group_advantage(many).any()

    def test_loss(self):
        # Ratios of row 0: 2 and 0.5, clipped at 1.2 and 0.8; the minimum takes 1.2 and 0.5 for a positive advantage.
        # Row 1 has one token with ratio 2 and advantage -1: the minimum of -2 and -1.2 is -2.
        logp = torch.tensor([[2., 0.5], [2., 9.]], dtype=torch.double).log().requires_grad_()
        old, mask = torch.zeros(2, 2).double(), torch.tensor([[1, 1], [1, 0]])
        adv = torch.tensor([3., -1.], dtype=torch.double)
        loss, metrics = example.grpo_loss(logp, old, None, adv, mask, 0.2, 0.0)
        assert loss.item() == pytest.approx((-(1.2 + 0.5) * 3 / 2 + 2) / 2)
        assert metrics == dict(clipfrac=1.0, kl=0.0)
        # the gradient of a ratio is the ratio; it is 0 where the loss is clipped
        loss.backward()
        assert torch.allclose(logp.grad, torch.tensor([[0, -0.5 * 3 / 4], [2 / 2, 0]]).double())

    def test_kl(self):
        # k3 of reference 2 times as probable: 2 - log 2 - 1; of half as probable: 0.5 + log 2 - 1
        logp, ref = torch.zeros(1, 3).double(), torch.tensor([[2., 0.5, 7.]], dtype=torch.double).log()
        mask, log_2 = torch.tensor([[1, 1, 0]]), torch.tensor(2.).double().log().item()
        loss, metrics = example.grpo_loss(logp, logp, ref, torch.zeros(1).double(), mask, 0.2, 0.1)
        assert metrics['kl'] == pytest.approx((1 - log_2 - 0.5 + log_2) / 2)
        assert loss.item() == pytest.approx(0.1 * metrics['kl'])


@pytest.fixture(scope='module')
def sampled():
    """A model with uneven probabilities, and completions of ragged words."""
    model = example.make_model(0).double()
    disturb(model, 0, 0.3)
    batch = example.collect(model, ['ba', 'hgfed', 'cab'], 8, torch.Generator().manual_seed(0))
    return model, batch


class TestSample:

    def test_mask_ends_with_the_first_end_token(self, sampled):
        _, batch = sampled
        lengths = set()
        for ids, mask in zip(batch.completion.tolist(), batch.mask.tolist()):
            n = ids.index(example.END) + 1 if example.END in ids else example.MAX_TOKENS
            assert mask == [1] * n + [0] * (len(mask) - n) and set(ids[n:]) <= {example.PAD}
            lengths.add(n)
        assert len(lengths) > 2 and not (batch.logp_old * (1 - batch.mask)).any()

    def test_log_probabilities_are_those_that_learning_reads(self, sampled):
        model, batch = sampled
        logp = example.completion_logp(model, batch) * batch.mask
        assert torch.allclose(batch.logp_old, logp, rtol=0, atol=1e-5)  # its norms compute in float32

    def test_a_row_does_not_depend_on_the_padding(self, sampled):
        model, batch = sampled
        logp = example.completion_logp(model, batch)
        for row in range(len(logp)):
            prompt, n = batch.prompt[row][batch.prompt_mask[row] == 1].unsqueeze(0), batch.mask[row].sum()
            completion = batch.completion[row:row + 1, :n]
            plain = model(torch.cat([prompt, completion], dim=1)).logits[:, prompt.shape[1] - 1:-1].log_softmax(-1)
            plain = plain.gather(2, completion.unsqueeze(2)).squeeze(2)
            assert torch.allclose(logp[row:row + 1, :n], plain, rtol=0, atol=1e-5)


class TestTrain:

    def test_program(self, tmp_path):
        arguments = '--updates 3 --prompts 4 --group 4 --batch 2 --evaluate-every 2 --epochs 2'.split()
        code, out = Process(run_program, ['examples.grpo', *arguments], tmp_path).end()
        lines = [line for line in out.splitlines() if line.startswith('update ')]
        assert code == 0, out
        assert [line.split('  ')[0] for line in lines] == ['update 2', 'update 3']

    def test_learns_two_words(self):
        options = example.Options(updates=1000, group=16, batch=2, rate=5e-3, beta=0.0)
        model, generator, rewards = example.make_model(0), torch.Generator().manual_seed(0), []
        optimizer = torch.optim.AdamW(model.parameters())
        for number in range(15):
            batch = example.collect(model, ['ba', 'ca'], options.group, generator)
            example.update(model, None, optimizer, batch, options, number, generator)
            rewards.append(batch.reward.mean().item())
        assert max(rewards[5:]) > 2 * rewards[0]
