"""What the environment wrote is read and never learned."""
import copy

import pytest
import torch

from ding_grpo.data.batch import Batch
from dizoo_llm import MultiTurnTask, Problem, Reply
from dizoo_llm.envs import TokenEnv
from tests.cases import brief

from tests.policies import make_policy, sample_dialogues


class Chatter(MultiTurnTask):
    """Random replies and rewards, of which some are empty, too long, or the last."""
    weights, chars = dict(a=1.0), 'abcdefg.'

    def __len__(self):
        return 5

    def problem(self, index):
        return Problem('abcde'[:index + 1])

    def begin(self, problem, seed):
        return dict(random=torch.Generator().manual_seed(seed))

    def respond(self, problem, state, turn):
        number, done, reward = torch.randint(0, 10, (3, ), generator=state['random']).tolist()
        text = ''.join('abcdefg.'[i] for i in torch.randint(0, 8, (number, ), generator=state['random']).tolist())
        return Reply(text, dict(a=reward + len(turn.text) / 7), done=done == 0, anchor=number)


# 25 groups of 8 rows each
SETTINGS = {
    'plain': (dict(max_turns=4, max_new_tokens=5, max_reply_tokens=10), {}),
    'cut turns': (dict(max_turns=5, max_new_tokens=2, max_reply_tokens=10), {}),
    'stop strings': (dict(max_turns=4, max_new_tokens=6, max_reply_tokens=8, stop=['.', 'ab', 'gg']), {}),
    'budgets': (dict(max_turns=5, max_new_tokens=5, max_reply_tokens=6, max_tokens=17), dict(temperature=0.7)),
    'top-k': (dict(max_turns=4, max_new_tokens=5, max_reply_tokens=10, stop=['a']), dict(top_k=4, top_p=0.9)),
}
ALWAYS = ('stop strings', 'budgets', 'top-k')


def sampled(think_answer, setting, groups=25, seed=0, **learn):
    main, create = think_answer
    env_options, sampling = SETTINGS[setting]
    env = TokenEnv(Chatter(), **env_options)
    main.policy.group_size = 8
    main.policy.collect.update(sampling)
    main.policy.learn.update(learn, adv_method='no_std', advantage='return_to_go_by_step', reduction='constant')
    policy = make_policy(main, create, env=env, seed=seed)
    return policy, sample_dialogues(policy, env, groups)


@pytest.mark.unittest
@pytest.mark.parametrize('setting', brief(SETTINGS, ALWAYS))
class TestMasks:

    def test_the_learner_computes_what_the_sampler_reported(self, think_answer, setting):
        policy, samples = sampled(think_answer, setting)
        batch = Batch.of(samples)
        assert (batch.weight == 0).logical_and(batch.turn >= 0).any(1).float().mean() > 0.5  # rows with replies
        with torch.no_grad():
            found = policy._actor.read(policy._model, batch).logp
        own = batch.weight != 0
        assert len(batch) == 200 and own.sum() > 1000
        assert (found - batch.logp_old)[own].abs().max() <= 2e-6

    def test_replies_of_another_row_give_other_log_probabilities(self, think_answer, setting):
        """The control of the test above: it does not pass when rows get the replies of others."""
        policy, samples = sampled(think_answer, setting)
        batch = Batch.of(samples)
        reply = (batch.weight == 0) & (batch.turn >= 0)
        tokens = batch.action[reply]
        batch.action[reply] = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))]
        with torch.no_grad():
            found = policy._actor.read(policy._model, batch).logp
        later = (batch.weight != 0) & (batch.turn > 0)
        gap = (found - batch.logp_old)[later].abs()
        assert (gap > 1e-4).float().mean() > 0.5 and gap.max() > 1e-2

    def test_what_stands_at_replies_reaches_no_gradient(self, think_answer, setting):
        policy, samples = sampled(think_answer, setting, 4, batch_size=4, entropy_weight=0.1)
        other = copy.deepcopy(samples)
        for sample in other:
            replies = (sample['weight'] == 0) & (sample['turn'] >= 0)
            sample['logp_old'][replies] = torch.randn(int(replies.sum())) * 9
            if 'kept' in sample:
                sample['kept'][replies] = torch.randint(0, 9, sample['kept'][replies].shape)
        state = copy.deepcopy(policy._model.state_dict())
        found = []
        for data in (samples, other):
            policy._model.load_state_dict(state)
            policy._learning.updater.shuffle.manual_seed(0)
            metrics = policy.learn_mode.forward(data)
            assert metrics['optimizer_steps'] > 0 and metrics['grad_norm'] > 0
            found.append([p.grad.clone() for p in policy._model.parameters()])
        assert all(map(torch.equal, *found))
