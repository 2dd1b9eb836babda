"""Games of several turns through DI-engine's pipelines."""
import pytest
from ding.policy import PPOPolicy

from dizoo_llm import TASK_REGISTRY
from dizoo_llm.tasks import GuessTask, KeyAndDoorTask
from tests.runs import completions, distance, each_update, evaluations, metrics, train, weights
from tests.same import same
from tests.shipped import small

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]


def finished(name, folder='run', updates=3, manager='base', **changes):
    """The model's weights after a few updates."""
    main, create = small(name, **changes)
    create.env_manager.type = manager
    main.policy.eval.evaluator.update(eval_freq=2, samples_per_start=2)
    return weights(train((main, create), updates, name=folder))


def test_base_and_subprocess_managers_give_the_same_bits():
    same(finished('frozenlake_grpo', 'a'), finished('frozenlake_grpo', 'b', manager='subprocess'))
    same(evaluations('a'), evaluations('b'))
    assert all(1 <= e['turns'] <= 10 and 1 <= e['sampled_turns'] <= 10 for e in evaluations('a'))


@pytest.mark.parametrize(
    'learn', [
        dict(advantage='anchor', anchor_weight=0.5),
        dict(advantage='gae', adv_method='no_std', micro_batch_tokens=30, kl=dict(beta=0.1)),
    ],
    ids=str
)
def test_other_credits_learn_and_dialogues_are_recorded(learn):
    before, after = (
        finished('key_and_door_grpo', name, n, policy=dict(learn=learn)) for name, n in (('a', 1), ('b', 3))
    )
    assert distance(before, after) > 0
    assert len(metrics('b')) == 3 and all(m.get('sampler_gap_max', 0) <= 2e-6 for m in metrics('b'))
    for record in completions('b'):
        first = record['turns'][0]
        assert 1 <= len(record['turns']) <= 3 and record['prompt'] == 'room'
        assert record['completion'].startswith(f"{first['text']} -> {first['reply']}")
        assert sum(turn['reward'] for turn in record['turns']) == pytest.approx(record['reward'])
    episodes = evaluations('b')[-1]['completions']
    assert [e['index'] for e in episodes] == [0, 1, 2, 3] and all(e['turns'] for e in episodes)


def test_di_engines_ppo_learns_from_turns():
    options = dict(collect=dict(n_sample=64), learn=dict(batch_size=32, epoch_per_collect=2))
    main, create = small('guess_ppo', env=dict(collector_env_num=8), policy=options)
    main.policy.eval.evaluator.eval_freq = 4
    found = weights(train((main, create), 8))
    assert found['critic.weight'].any() and evaluations()[-1]['turns'] > 1


def test_rewards_of_turns_reach_ppo(monkeypatch):
    """Each at the last token of its turn, within whole episodes; a reply is part of the next observation."""
    collected = []
    each_update(monkeypatch, lambda _, policy, data: collected.extend(data), kind=PPOPolicy)
    options = dict(collect=dict(n_sample=512), learn=dict(batch_size=256, epoch_per_collect=1))
    train(small('key_and_door_ppo', env=dict(collector_env_num=8), policy=options), 2)
    key, rewarded = KeyAndDoorTask.words.index('key'), 0
    observations = [step['obs'].long()[step['obs'] >= 0].tolist() for step in collected]
    for step, before, following in zip(collected, observations, observations[1:]):
        told = following[len(before) + 1:]
        if step['reward'] == 0 or step['done']:
            continue
        assert step['reward'] == 0.25 and following[:len(before) + 1] == [*before, step['action']]
        if len(before) <= 2:  # in the first turn, which took the key
            assert key in told[:2]
            rewarded += 1
    assert rewarded > 0 and sum(bool(step['done']) for step in collected) > 8


CALL = '<tool_call>{"name":"calc","arguments":{"expression":"%s"}}</tool_call>'
PRODUCT = '''
def problems():
    return [dict(prompt='product', answer=12)]
def score(problem, completion):
    return float(completion.split()[:1] == ['12'])
'''


def test_a_tool_is_called_in_any_manager(tmp_path):
    """A call is one word of the vocabulary, so that a random policy writes some."""
    (tmp_path / 'product.py').write_text(PRODUCT)
    task = dict(type='file', path=str(tmp_path / 'product.py'))
    words = ['product', '12', '7', CALL % '3*4', CALL % '3+4']
    env = dict(
        task=dict(type='tools', task=task, functions=['dizoo_llm.tasks.calculator:calc']),
        tokenizer=dict(words=words),
        stop=['</tool_call>'],
        max_reply_tokens=9,
        n_evaluator_episode=1,
        evaluator_env_num=1
    )
    changes = dict(env=env, policy=dict(model=dict(config=dict(vocab_size=len(words) + 3))))
    same(finished('guess_grpo', 'a', **changes), finished('guess_grpo', 'b', manager='subprocess', **changes))
    replies = {turn['reply'] for record in completions('a') for turn in record['turns']}
    assert {'tool: 12', 'tool: 7'} <= replies and any(r['reward_parts']['calls'] for r in completions('a'))


@TASK_REGISTRY.register('guess_without_a_reply')
class Mute(GuessTask):

    def respond(self, *args):
        return super().respond(*args)._replace(text='lower')


def test_a_game_that_does_not_tell_cannot_be_learned():
    """The control of a game of turns: with replies that are always the same, no policy finds more than three of 7."""
    env = dict(task=dict(type='guess_without_a_reply'))
    finished('guess_grpo', 'a', 12, env=env, policy=dict(learn=dict(learning_rate=2e-3)))
    guesses = {tuple(turn['text'] for turn in e['turns'])[:1] for e in evaluations('a')[-1]['completions']}
    assert len(guesses) == 1  # every game is played the same way, up to its end
