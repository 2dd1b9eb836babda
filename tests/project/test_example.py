"""examples/grpo_in_150_lines.py does what the policy does."""
import os
import runpy

import pytest
import torch

from tests.policy.helper import make_policy, sample_groups
from tests.shipped import load

PATH = os.path.join(os.path.dirname(__file__), '..', '..', 'examples', 'grpo_in_150_lines.py')


@pytest.fixture(scope='module')
def example():
    return runpy.run_path(PATH)


@pytest.mark.unittest
class TestExample:

    def test_has_150_lines(self):
        with open(PATH) as f:
            assert len(f.readlines()) <= 150

    def test_first_update_is_the_policys(self, example):
        policy = make_policy(*load('think_answer_grpo'))
        model = example['make_model'](0)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), policy._model.parameters()))
        data = sample_groups(policy, [0, 1, 2, 3, 1, 0, 2, 2])
        longest = max(s['action'].shape[1] for s in data)

        def rows(key):
            return torch.cat([torch.nn.functional.pad(s[key], (0, longest - s[key].shape[1])) for s in data])

        size = len(data[0]['action'])
        given = example['Rows'](
            prompts=[s['prompt'] for s in data for _ in range(size)],
            action=rows('action'),
            logp_old=rows('logp_old'),
            weight=rows('weight'),
            reward=rows('reward').sum(1),
            group=torch.arange(len(data)).repeat_interleave(size),
        )
        assert given.reward.unique().numel() > 2
        optimizer = torch.optim.AdamW(model.parameters(), lr=example['RATE'], weight_decay=0.0, fused=True)
        order = torch.Generator()
        order.set_state(policy._learning.updater.shuffle.get_state())
        before = [p.detach().clone() for p in model.parameters()]
        entropy = example['update'](model, optimizer, given, order)
        metrics = policy.learn_mode.forward(data)
        for old, new, expected in zip(before, model.parameters(), policy._model.parameters()):
            assert not torch.equal(old, new) and torch.allclose(new, expected, rtol=0, atol=1e-7)
        assert entropy == pytest.approx(metrics['entropy'], rel=1e-5)

    def test_rewards_are_the_environments(self, example):
        text = '9 </think> <answer> 3 </answer> <eos>'
        completion = torch.tensor(example['TOKENIZER'].encode(text))
        assert example['reward_of'](0, completion) == 2 and example['reward_of'](1, completion) == 0.5
        assert example['reward_of'](0, completion[:-1]) == 1.5  # cut

    def test_learns(self, example, capsys):
        model = example['make_model'](0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        generator = torch.Generator().manual_seed(0)
        rewards = []
        for _ in range(12):
            rows = example['collect'](model, [0, 1], generator)
            example['update'](model, optimizer, rows, generator)
            rewards.append(rows.reward.mean().item())
        assert max(rewards[6:]) > 2 * rewards[0]
