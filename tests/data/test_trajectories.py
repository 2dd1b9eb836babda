"""Episodes of several texts: rows, prompts, rewards and advantages."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.config.checks import check_for_turns
from ding_grpo.data.batch import Batch
from ding_grpo.data.folding import fold_group
from ding_grpo.data.micro_batch import split_rows
from ding_grpo.learn.advantage import Advantage
from dizoo_llm.envs import TokenEnv
from tests.data.test_batch import transition
from tests.policies import token_policy


def step(prompt, action, trajectory, turn=0, reward=0., failed=False):
    plain = transition(action, reward, None, prompt, turn, dict(right=reward), False)
    return dict(plain, trajectory=trajectory, failed=failed, done=True)


@pytest.fixture
def episodes():
    """The first one leaves its text and comes back, the second has one text, the third failed."""
    return [
        [step([1, 2], [3], 0),
         step([7], [8, 9], 1),
         step([1, 2, 3, 4], [5], 0, turn=1, reward=1.)],
        [step([1, 2], [6], 0, reward=0.)],
        [step([2], [6], 0), step([7], [4], 1, failed=True)],
    ]


def test_each_text_is_a_row_with_the_reward_of_its_episode(episodes):
    sample = fold_group(episodes)
    assert sample['episode'].tolist() == [0, 1, 2, 0, 2]
    assert [p.tolist() for p in sample['prompts']] == [[1, 2], [1, 2], [2], [7], [7]]
    assert sample['prompts'][0] is sample['prompts'][1] and sample['prompts'][3] is sample['prompts'][4]
    assert sample['action'].tolist() == [[3, 4, 5], [6, 0, 0], [6, 0, 0], [8, 9, 0], [4, 0, 0]]
    assert sample['weight'].tolist() == [[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    assert sample['reward'].sum(1).tolist() == [1, 0, 0, 1, 0] and sample['reward'][0].tolist() == [0, 0, 1]
    assert sample['failed'].tolist() == [0, 0, 1, 0, 1] and sample['reward_parts']['right'].tolist() == [1, 0, 0, 1, 0]


@pytest.mark.parametrize('by_trajectory, shares', [('whole', (1, 1)), ('divided', (0.5, 1))])
def test_episodes_are_compared_once(episodes, by_trajectory, shares):
    batch = Batch.of([fold_group(episodes), fold_group(episodes[::-1])])
    adv = Advantage('no_std', by_trajectory=by_trajectory).of(batch)
    first, second = shares
    assert adv.tolist() == [0.5 * first, -0.5 * second, 0, 0.5 * first, 0
                            ] + [0, -0.5 * second, 0.5 * first, 0, 0.5 * first]
    assert not Advantage('no_std').equal(batch.take(torch.arange(5)))


def test_a_step_gets_the_rewards_up_to_the_next_of_its_text(episodes):
    """Text 0: what its first step, the step of text 1, and its last one got; text 1: its own step and all after it."""
    episodes[0][-1]['rewards'] = [1., 2., 4.]
    sample = fold_group(episodes[:2])
    assert sample['reward'].tolist() == [[3, 0, 4], [0, 0, 0], [0, 6, 0]]
    assert Batch.of([sample]).reward.flip(1).cumsum(1).flip(1)[:, 0].tolist() == [7, 0, 6]  # the return from there on


def test_turns_are_compared_in_episodes_of_one_text(episodes):

    def text(*rewards):
        steps = [step([1, 2, 3][:i + 2] + [4] * i, [3], 0, turn=i) for i in range(len(rewards))]
        steps[1]['prompt'] = torch.tensor([1, 2, 3, 4])
        steps[-1]['rewards'] = list(rewards)
        return steps

    advantage = Advantage('no_std', compare='return_to_go_by_step', by_turn=True)
    batch = Batch.of([fold_group([text(0., 1.), text(1., 0.)])])
    assert advantage.of(batch)[batch.weight > 0].tolist() == [0, 0.5, 0, -0.5]
    with pytest.raises(ConfigError, match="'return_to_go_by_step': an episode has 2 texts"):
        advantage.of(Batch.of([fold_group(episodes)]))


def test_equal_episodes_teach_nothing(episodes):
    episodes[0][-1]['reward'][-1] = 0.
    assert Advantage('no_std').equal(Batch.of([fold_group(episodes)]))


def test_parts_count_each_prompt(episodes):
    batch = Batch.of([fold_group(episodes)])
    batch.failed[:] = False
    assert [part.tolist() for part in split_rows(batch, 6)] == [[0, 1, 2], [3, 4]]  # 2 + 2, 0, 1; 1 + 1, 0


def test_rows_of_several_prompts_learn_as_each_alone(episodes):
    """The gradient of an update is that of the rows with their own prompts, whatever is read together."""
    found = []
    for most in (None, 6):
        policy = token_policy(reduction='constant', learning_rate=1e-2, micro_batch_tokens=most)
        policy.use_sgd()
        sample = dict(fold_group(episodes), group_id=0, collect_iter=0)
        sample['reward_parts'] = {name: torch.zeros(5) for name in TokenEnv().weights}
        policy.learn_mode.forward([sample])
        found.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert torch.allclose(*found, atol=1e-6)


@pytest.mark.parametrize('most', [None, 6])
def test_a_mean_over_rows_is_one_over_episodes(episodes, most):
    """A mean that depends on how many texts were begun is biased. The step is sum A grad log p / (E max_length)."""
    learn = dict(loss='dr_grpo', learning_rate=1.0, grad_clip_value=1e9, entropy=dict(weight=0))
    policy = token_policy(micro_batch_tokens=most, **learn)
    policy.use_sgd()
    sample = dict(fold_group(episodes[:2]), group_id=0, collect_iter=0)  # three rows, two episodes
    sample['reward_parts'] = {name: torch.zeros(3) for name in TokenEnv().weights}
    batch, before = Batch.of([sample]), [p.detach().clone() for p in policy.model.parameters()]
    logp = policy.actor.read(policy.model, batch).logp
    gain = (torch.tensor([[0.5], [-0.5], [0.5]]) * logp * batch.weight).sum() / (2 * policy.actor.max_length)
    expected = torch.autograd.grad(gain, [*policy.model.parameters()])
    sample['logp_old'] = logp.detach() * batch.weight
    metrics = policy.learn_mode.forward([sample])
    for p, old, step in zip(policy.model.parameters(), before, expected):
        assert torch.allclose(p - old, step, atol=1e-6)
    assert max(step.abs().max() for step in expected) > 1e-4
    assert metrics['policy_loss'] == pytest.approx(-0.75 / policy.actor.max_length)  # 2, 1 and 2 tokens


@pytest.mark.parametrize(
    'learn, told', [
        (dict(advantage='return_to_go'), "'return_to_go': must be 'outcome' or 'return_to_go_by_step' with"),
        (dict(adv_method='optimal_token_baseline'), 'compares single tokens'),
        (dict(kl=dict(beta=0.1, in_reward=True)), 'kl.in_reward = True: must be False'),
    ],
    ids=range(3)
)
def test_what_compares_no_whole_episodes_is_refused(learn, told):
    policy = token_policy(**learn)
    with pytest.raises(ConfigError, match=told):
        check_for_turns(policy.cfg, 3, trajectories=True)
