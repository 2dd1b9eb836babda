"""``policy.learn.demonstrations``: supervised tokens beside the policy's own rows."""
import copy

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import supervised_data, supervised_error
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import Problem, Task
from tests.policies import make_policy, sample_groups
from tests.act.test_step_actor import DISCRETE, make
from tests.shipped import small

ALONE = dict(advantage='none', adv_method=None, entropy_weight=0.)
ENV = dict(max_new_tokens=10)


def shown(env=None, group_size=4, **learn):
    main, create = small('think_answer_grpo')
    main.policy.group_size = group_size
    main.policy.learn.update(learn)
    return make_policy(main, create, env=env or TokenEnv(**ENV))


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy._model.parameters()])


@pytest.mark.unittest
def test_error_by_hand():
    logp = torch.tensor([[-1., -3., 0.], [-5., 0., 0.]], requires_grad=True)
    data = supervised_data(logp, torch.tensor([[1., 1., 0.], [1., 0., 0.]]))
    for options, expected in ((dict(), 3.5), (dict(reduction='token'), 3.), (dict(reduction='sum'), 4.5)):
        loss, info = supervised_error(data, **options)
        assert loss.item() == expected and info.nll == 3.


@pytest.mark.unittest
class TestDemonstrations:

    def test_the_gradient_is_that_of_the_answers_under_transformers(self):
        policy = shown(**ALONE, demonstrations=dict(share=0.5, weight=2.), learning_rate=1e-9)
        batch, lm = Batch.of(sample_groups(policy, [0, 1])), policy._model.lm
        drawn = policy._learning.terms['demonstrations'].demonstrations.draw(
            len(batch), policy._learning.updater.step_seed
        )
        assert len(drawn) == 4
        losses = []
        for row, prompt in enumerate(drawn.prompts):
            answer = drawn.action[row, :drawn.length[row]]
            logp = lm(torch.cat([prompt, answer]).unsqueeze(0)).logits[0, len(prompt) - 1:-1].log_softmax(-1)
            losses.append(-logp.gather(1, answer.unsqueeze(1)).mean())
        expected = sum(losses) / 4
        gradients = torch.autograd.grad(2 * expected, list(lm.parameters()))
        metrics = policy._learning.updater.step(policy._learning.to_learn(batch))
        clipped = min(1, policy.cfg.learn.grad_clip_value / metrics['grad_norm'])
        for p, g in zip(lm.parameters(), gradients):
            assert torch.allclose(p.grad, g * clipped, atol=1e-6)
        assert metrics['total_loss'] == pytest.approx(2 * expected.item(), abs=1e-5)
        assert metrics['demonstration_nll'] > 1 and 'demonstration_nll' in policy._monitor_vars_learn()

    def test_the_tokens_are_right_answers_of_training_problems(self):
        env = TokenEnv(**ENV)
        drawn = shown(demonstrations=dict(share=1.))._learning.terms['demonstrations'].demonstrations.draw(64, 3)
        texts = set()
        for row, prompt in enumerate(drawn.prompts):
            answer = drawn.action[row, :drawn.length[row]]
            index = next(i for i in range(4) if env.encode(env.task.problem(i)) == prompt.tolist())
            env.reset(options=dict(index=index))
            info = env.step(answer.numpy())[-1]
            assert info['return'] == 1 and info['terminated'] and info['taken'] == len(answer)
            texts.add(index)
        assert texts == {0, 1, 2, 3}

    def test_answers_become_likely_without_a_reward(self):
        policy = shown(group_size=1, **ALONE, demonstrations=dict(share=1.), learning_rate=1e-2, batch_size=4)
        groups = sample_groups(policy, [0, 1, 2, 3], reward=lambda group, row: 0.)
        found = [policy.learn_mode.forward(copy.deepcopy(groups)) for _ in range(30)]
        assert min(m['demonstration_nll'] for m in found) < 0.3 * found[0]['demonstration_nll']
        assert all(metrics['policy_loss'] == 0 for metrics in found)

    def test_micro_batches_change_nothing_but_memory(self):
        for loss in ('grpo', 'dapo'):
            found = []
            for most in (None, 60):
                policy = shown(micro_batch_tokens=most, loss=loss, demonstrations=dict(share=1.))
                policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=lambda group, row: float(row)))
                found.append(weights(policy))
            assert torch.allclose(*found, atol=1e-6)

    def test_each_step_has_its_own_and_the_same_when_repeated(self):
        policy = shown(demonstrations=dict(share=1.))
        draw = policy._learning.terms['demonstrations'].demonstrations.draw
        first, second = draw(32, 0), draw(32, 1)
        assert [p.tolist() for p in first.prompts] != [p.tolist() for p in second.prompts]
        assert [p.tolist() for p in first.prompts] == [p.tolist() for p in draw(32, 0).prompts]

    def test_evaluation_problems_are_never_shown(self):
        assert TokenEnv(evaluation=True, **ENV).token_spec.demonstrations is None
        policy = shown(TokenEnv(evaluation=True, **ENV), demonstrations=dict(share=1.))
        with pytest.raises(ConfigError, match='the environment has no demonstrations'):
            policy.learn_mode.forward(sample_groups(policy, [0, 1]))


class NoAnswer(Task):
    weights = dict(right=1.0)
    words = ['a', 'b']

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem(prompt='a', answer='a')

    def score(self, problem, completion):
        return dict(right=float(completion == 'b'))


@pytest.mark.unittest
class TestConfig:

    def test_one_line_for_a_wrong_one(self):
        for learn, message in (
            (dict(demonstrations=dict(weight=0.5)), 'demonstrations.weight = 0.5: only available with'),
            (dict(demonstrations=dict(share=-1)), r'demonstrations.share = -1: must be a number in \[0'),
            (dict(demonstrations=dict(shares=1)), "did you mean 'share'"),
        ):
            with pytest.raises(ConfigError, match=message):
                shown(**learn)

    def test_answers_that_the_scorer_does_not_reward(self):
        with pytest.raises(ConfigError, match='env.task: its scorer gives .* for its own demonstration'):
            shown(TokenEnv(NoAnswer(), max_new_tokens=4), demonstrations=dict(share=1.))

    def test_answers_that_are_too_long(self):
        policy = shown(TokenEnv(max_new_tokens=3), demonstrations=dict(share=1.))
        with pytest.raises(ConfigError, match='env.max_new_tokens = 3: the answer .* has 6 tokens'):
            policy._learning.terms['demonstrations'].demonstrations.draw(64, 0)

    def test_other_models(self):
        with pytest.raises(ConfigError, match='demonstrations.share = 1.0: only available for language models'):
            make(DISCRETE, learn=dict(demonstrations=dict(share=1.)))
