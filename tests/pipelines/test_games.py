"""Games of several turns through DI-engine's pipelines."""
import copy

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from ding.policy import PPOPolicy

from ding_common import read_json_lines
from dizoo_llm.tasks import GuessTask, KeyAndDoorTask

from tests.same import same
from tests.shipped import small


def run(name, folder, updates=3, manager='base', **changes):
    """The model's weights after a few updates."""
    main, create = small(name, **changes)
    main.exp_name, create.env_manager.type = folder, manager
    main.policy.eval.evaluator.update(eval_freq=2, samples_per_start=2)
    policy = serial_pipeline_onpolicy((copy.deepcopy(main), copy.deepcopy(create)), seed=0, max_train_iter=updates)
    return policy._model.state_dict()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.envtest
class TestRun:

    @pytest.mark.parametrize('name', ['guess_grpo', 'frozenlake_grpo'])
    def test_base_and_subprocess_managers_give_the_same_bits(self, name):
        first, second = run(name, 'a'), run(name, 'b', manager='subprocess')
        same(first, second)
        evaluations = [read_json_lines(f'{folder}/log/evaluator/evaluations.jsonl') for folder in 'ab']
        for one, other in zip(*evaluations):
            assert {**one, 'seconds': 0} == {**other, 'seconds': 0}
            assert 1 <= one['turns'] <= 10 and 1 <= one['sampled_turns'] <= 10

    @pytest.mark.parametrize(
        'learn', [
            dict(advantage='anchor', anchor_weight=0.5),
            dict(advantage='outcome'),
            dict(advantage='gae', adv_method='no_std'),
            dict(beta=0.1, micro_batch_tokens=30)
        ],
        ids=str
    )
    def test_other_credits_learn(self, learn):
        before, after = (
            run('key_and_door_grpo', name, n, policy=dict(learn=learn)) for name, n in (('a', 1), ('b', 3))
        )
        assert any(not torch.equal(x, before[name]) for name, x in after.items())
        metrics = read_json_lines('b/log/learner/metrics.jsonl')
        assert len(metrics) == 3 and all(m['sampler_gap_max'] <= 2e-6 for m in metrics if 'sampler_gap_max' in m)

    def test_dialogues_are_recorded(self):
        run('key_and_door_grpo', 'a')
        for record in read_json_lines('a/log/collector/completions.jsonl'):
            assert 1 <= len(record['turns']) <= 3 and record['prompt'] == 'room'
            assert record['completion'].startswith(f"{record['turns'][0]['text']} -> {record['turns'][0]['reply']}")
            assert sum(turn['reward'] for turn in record['turns']) == pytest.approx(record['reward'])
        episodes = read_json_lines('a/log/evaluator/evaluations.jsonl')[-1]['completions']
        assert [e['index'] for e in episodes] == [0, 1, 2, 3] and all(e['turns'] for e in episodes)

    @pytest.mark.parametrize('name', ['guess_ppo', 'key_and_door_ppo'])
    def test_di_engines_ppo_learns_from_turns(self, name):
        options = dict(collect=dict(n_sample=64), learn=dict(batch_size=32, epoch_per_collect=2))
        main, create = small(name, env=dict(collector_env_num=8), policy=options)
        main.policy.eval.evaluator.eval_freq = 4
        policy = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=8)
        assert policy._model.critic.weight.any()
        assert read_json_lines('run/log/evaluator/evaluations.jsonl')[-1]['turns'] > 1

    def test_rewards_of_turns_reach_ppo(self, monkeypatch):
        """Each at the last token of its turn, within whole episodes; a reply is part of the next observation."""
        collected = []
        learn = PPOPolicy._forward_learn
        monkeypatch.setattr(PPOPolicy, '_forward_learn', lambda self, data: collected.extend(data) or learn(self, data))
        options = dict(collect=dict(n_sample=256), learn=dict(batch_size=128, epoch_per_collect=1))
        main, create = small('key_and_door_ppo', env=dict(collector_env_num=8), policy=options)
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)
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


@pytest.mark.envtest
def test_a_tool_is_called_in_any_manager(tmp_path):
    """A call is one word of the vocabulary, so that a random policy writes some."""
    (tmp_path / 'product.py').write_text(PRODUCT)
    words = ['product', '12', '7', CALL % '3*4', CALL % '3+4']
    changes = dict(
        env=dict(
            task=dict(
                type='tools',
                task=dict(type='python', file=str(tmp_path / 'product.py')),
                functions=['dizoo_llm.tasks.calculator:calc']
            ),
            tokenizer=dict(words=words),
            stop=['</tool_call>'],
            max_reply_tokens=9,
            n_evaluator_episode=1,
            evaluator_env_num=1
        ),
        policy=dict(model=dict(config=dict(vocab_size=len(words) + 3)))
    )
    same(run('guess_grpo', 'a', **changes), run('guess_grpo', 'b', manager='subprocess', **changes))
    records = read_json_lines('a/log/collector/completions.jsonl')
    replies = {turn['reply'] for record in records for turn in record['turns']}
    assert {'tool: 12', 'tool: 7'} <= replies and any(r['reward_parts']['calls'] for r in records)


@pytest.mark.envtest
def test_a_game_that_does_not_tell_cannot_be_learned(monkeypatch):
    """The control of a game of turns: with replies that are always the same, no policy finds more than three of 7."""
    respond = GuessTask.respond
    monkeypatch.setattr(GuessTask, 'respond', lambda *args: respond(*args)._replace(text='lower'))
    run('guess_grpo', 'a', 12, policy=dict(learn=dict(learning_rate=2e-3)))
    last = read_json_lines('a/log/evaluator/evaluations.jsonl')[-1]
    guesses = {tuple(turn['text'] for turn in e['turns'])[:1] for e in last['completions']}
    assert len(guesses) == 1  # every game is played the same way, up to its end
