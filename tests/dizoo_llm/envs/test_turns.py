"""Episodes of several turns: who writes which token, where a turn and an episode end, and what a chat template adds."""
import re

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dizoo_llm import Reply
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import GuessTask, KeyAndDoorTask, Turn
from tests.dizoo_llm.helper import ids, play
from tests.tasks import Game

EOS = 11  # of the task guess; 0 to 10 are 1 to 7, guess, higher, lower and right


def guess():
    return TokenEnv('guess', max_new_tokens=2, max_turns=3, max_reply_tokens=2)


class Echo(Game):
    """
    Gives scripted replies, or repeats each turn; ``stop`` ends the episode. ``seen`` has the seed of the last episode
    and its turns.
    """
    weights, prompts = dict(length=1.0), 'ab'
    chars = 'abcdefghijklmnopqrstuvwxyz ?'

    def __init__(self, *replies):
        self.replies = replies

    def begin(self, problem, seed):
        return [seed]

    def respond(self, problem, state, turn):
        self.seen = state
        state.append(turn)
        if self.replies:
            return self.replies[turn.number]
        return Reply(turn.text, dict(length=float(len(turn.text))), done=turn.text == 'stop')


def echo(*replies, **changes):
    options = dict(max_new_tokens=8, max_turns=3, max_reply_tokens=9, max_prompt_length=1)
    return TokenEnv(Echo(*replies), **dict(options, **changes))


def heard(env):
    """The turns of the last episode, and whether they were cut."""
    return [(turn.text, turn.cut) for turn in env.task.seen[1:]]


@pytest.mark.envtest
class TestTurns:

    def test_gymnasium_checker(self):
        env = guess()
        check_env(env, skip_render_check=True)
        assert env.token_spec.max_tokens == 10 and env.token_spec.max_own_tokens == 6

    def test_a_game_by_hand(self):
        first, second, last = play(guess(), [3, EOS], [5, EOS], [4, EOS], index=4)
        assert first[0].tolist() == [7, 3, EOS, 8] + [-1] * 7 and first[1:4] == (0, False, False)
        assert second[0].tolist() == [7, 3, EOS, 8, 5, EOS, 9] + [-1] * 4 and second[1:4] == (0, False, False)
        assert last[0].tolist() == [7, 3, EOS, 8, 5, EOS, 9, 4, EOS, -1, -1] and last[1:4] == (1, True, False)
        assert [step[-1]['turn'] for step in (first, second, last)] == [0, 1, 2]
        assert first[-1]['anchor'] == (5, 7) and second[-1]['anchor'] == (5, 5)
        info = last[-1]
        assert info['completion'] == '4 -> higher\n6 -> lower\n5 -> right' and info['return'] == 1
        assert [turn['text'] for turn in info['turns']] == ['4', '6', '5'] and info['reward_parts'] == dict(right=1)

    def test_token_by_token_equals_whole_turns(self):
        whole, env = play(guess(), [3, EOS], [4, EOS], index=4), guess()
        env.reset(options=dict(index=4))
        for turn, wanted in zip(([3, EOS], [4, EOS]), whole):
            assert env.step(turn[0])[1:4] == (0, False, False)
            found = env.step(turn[1])
            assert np.array_equal(found[0], wanted[0]) and found[1:4] == wanted[1:4]
            assert found[-1] == dict(wanted[-1], taken=1)

    def test_a_cut_turn_stays_and_the_environment_closes_it(self):
        (obs, *_, info), = play(guess(), [3, 3, 3, 3], index=4)
        assert obs.tolist()[:5] == [7, 3, 3, EOS, 8] and info['taken'] == 2
        env = echo(max_new_tokens=3)
        play(env, 'abcd', 'ab')
        assert heard(env) == [('abc', True), ('ab', False)]
        play(env, 'a')  # another episode has a state of its own
        assert heard(env) == [('a', False)]

    def test_the_last_turn_allowed_is_answered(self):
        *_, last = play(guess(), [0, EOS], [0, EOS], [4, EOS], index=4)
        assert last[1:4] == (1, True, False)
        *_, last = play(guess(), [0, EOS], [0, EOS], [0, EOS], index=4)
        assert last[1:4] == (0, False, True) and last[-1]['turns'][-1]['reply'] == 'higher'

    def test_an_empty_turn_is_a_turn(self):
        env = echo()
        first, second, last = play(env, '', 'a', 'stop')
        assert (first[1], second[1], last[1]) == (0, 1, 4) and last[-1]['reward_parts'] == dict(length=5)
        assert first[0].tolist()[:3] == [0, env.tokenizer.eos_token_id, -1]  # an empty reply adds nothing

    @pytest.mark.parametrize('limits', [dict(max_reply_tokens=3), dict(max_tokens=9)])
    def test_a_reply_that_does_not_fit_is_dropped_and_its_reward_counts(self, limits):
        (obs, reward, terminated, truncated, info), = play(echo(**limits), 'abcd')
        assert (reward, terminated, truncated) == (4, False, True) and info['turns'][0]['reply'] == 'abcd'
        assert (obs >= 0).sum() == 6  # the prompt and the turn

    def test_a_budget_cuts_the_turn_that_reaches_it(self):
        *_, (obs, reward, terminated, truncated, info) = play(echo(max_tokens=9), 'ab', 'abcdef')
        # 3 own tokens, 2 of the reply, 4 left
        assert (info['taken'], reward, terminated, truncated) == (4, 4, False, True) and info['turns'][1]['cut']
        assert (obs >= 0).all() and len(obs) == 1 + 9

    def test_nothing_stands_behind_a_stop_string(self):
        env = echo(stop=['?', 'xy'])
        first, second = play(env, 'a?bc', 'xxyz')
        assert first[-1]['taken'] == 2 and second[-1]['taken'] == 3
        assert heard(env) == [('a?', False), ('xxy', False)]
        turn, end = ids(env, 'a?', False), env.tokenizer.eos_token_id  # added, since the policy did not write it
        assert first[0].tolist()[:6] == [0, *turn, end, *turn]
        first, second = play(env, ids(env, 'ax', False), ids(env, 'yz', False))  # one over two actions
        assert first[-1]['taken'] == 2 and second[-1]['taken'] == 1 and second[-1]['turn'] == 0

    @pytest.mark.parametrize(
        'reply, told', [
            ('text', 'must return a Reply'), (Reply(3), 'must return a Reply'),
            (Reply('a', dict(size=1.)), 'must reward only'), (Reply('a', dict(length=float('nan'))), 'finite number'),
            (Reply('a', anchor=[1]), r'replied with anchor = \[1\], must be hashable'),
            (Reply('a\ud800'), r"a reply could not be encoded: TypeError: .*; reply: 'a\\ud800'"),
            (Reply('A'), "no token for .'A'."), (Reply([dict(role='user', content='a')]), 'no template is applied')
        ]
    )
    def test_wrong_replies_are_failures_with_a_reason(self, reply, told):
        (*_, info), = play(echo(reply), 'ab')
        assert re.search(told, info['failed'])

    @pytest.mark.parametrize('each, turns', [(3e38, 2), (1e39, 1)])
    def test_a_total_that_is_not_finite_in_float32_fails_its_episode(self, each, turns):
        env = echo(Reply('a', dict(length=each)), Reply('a', dict(length=each), done=True))
        *_, (_, _, terminated, _, info) = play(env, *['ab'] * turns)
        assert terminated and 'must be a finite number (float32)' in info['failed'] and info['return'] == 0

    def test_the_seed_of_a_game(self):
        env, held_out, found = echo(), echo(evaluation=True), []
        for each, seed in ((env, 5), (env, 5), (env, 6), (held_out, 5)):
            each.reset(seed=seed, options=dict(index=1))
            each.step(ids(each, 'a'))
            found.append(each.task.seen[0])
        assert found[0] == found[1] != found[2] and found[3] == 1


@pytest.mark.envtest
class TestTasks:

    def test_the_first_word_is_the_guess(self):
        task, told = GuessTask(), {'': 'lower', 'guess 4': 'lower', '4 guess': 'right', '44': 'lower'}
        problem = task.problem(3)
        for text, reply in told.items():
            assert task.respond(problem, task.begin(problem, 0), Turn(text, 0, False)).text == reply

    def test_each_prompt_begins_with_the_demonstrated_games(self):
        rules = ('user', 'find it')
        of_5 = [('assistant', '4'), ('user', 'higher'), ('assistant', '6'), ('user', 'lower'), ('assistant', '5')]
        task = GuessTask(prompt='find it', examples=[5, 4])
        for i in range(7):
            problem = task.problem(i)
            told = [(m['role'], m['content']) for m in problem.prompt]
            assert problem.answer == str(i + 1) and told == [rules, *of_5, rules, ('assistant', '4'), rules]
        assert GuessTask(prompt='find it').problem(0).prompt == 'find it'
        assert GuessTask(prompt='find it').words == [*'1234567', 'find', 'it', 'higher', 'lower', 'right']

    @pytest.mark.parametrize(
        'words, rewards', [
            ('take walk green', [.25, .25, 1]),
            ('take walk red', [.25, .25, 0]),
            ('walk take take walk', [0, .25, 0, .25]),
            ('green take green walk', [0, .25, 0, .25]),
        ]
    )
    def test_the_door_needs_key_and_colour(self, words, rewards):
        env = TokenEnv(KeyAndDoorTask(), max_new_tokens=2, max_turns=4, max_reply_tokens=3)
        assert [reward for _, reward, *_ in play(env, *words.split(), index=1)] == rewards
