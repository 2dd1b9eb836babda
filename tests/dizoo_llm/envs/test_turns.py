"""Episodes of several turns: who writes which token, where a turn and an episode end, and what a chat template adds."""
import json
import re
import time
from functools import partial

import numpy as np
import pytest
from ding.envs import create_env_manager, get_env_manager_cls
from easydict import EasyDict
from gymnasium.utils.env_checker import check_env

from ding_common import ConfigError
from dizoo_llm import MultiTurnTask, Problem, Reply
from dizoo_llm.envs import DingTokenEnv, TokenEnv
from dizoo_llm.envs.options import ENV_OPTIONS
from dizoo_llm.tasks import GuessTask, KeyAndDoorTask
from dizoo_llm.text.encoder import Encoder
from dizoo_llm.text.tokenizer import build_char_tokenizer

WORDS = [*map(str, range(1, 8)), 'guess', 'higher', 'lower', 'right']  # ids 0 to 10 of the task guess
EOS = 11


def guess(**changes):
    return TokenEnv(**dict(dict(task='guess', max_new_tokens=2, max_turns=3, max_reply_tokens=2), **changes))


def play(env, *turns, index=0):
    """The steps of an episode in which each turn is one action."""
    env.reset(options=dict(index=index))
    return [env.step(turn) for turn in turns]


class Echo(MultiTurnTask):
    """Repeats a turn; ``stop`` ends the episode, ``crash`` raises."""
    weights = dict(length=1.0)
    chars = 'abcdefghijklmnopqrstuvwxyz ?'
    states = {}

    def __len__(self):
        return 2

    def problem(self, index):
        return Problem('ab'[index])

    def begin(self, problem, seed):
        return self.states.setdefault('shared', [seed])

    def respond(self, problem, state, turn):
        self.seen = state
        state.append(turn)
        if turn.text == 'crash':
            raise OSError('gone')
        return Reply(turn.text, dict(length=float(len(turn.text))), done=turn.text == 'stop')


class Scripted(Echo):

    def __init__(self, *replies):
        self.replies = replies

    def respond(self, problem, state, turn):
        return self.replies[turn.number]


def echo(**changes):
    options = dict(task=Echo(), max_new_tokens=8, max_turns=3, max_reply_tokens=9, max_prompt_length=1)
    return TokenEnv(**dict(options, **changes))


def ids(env, text, end=True):
    return env.tokenizer.encode(text) + [env.tokenizer.eos_token_id] * end


@pytest.mark.envtest
class TestTurns:

    def test_gymnasium_checker(self):
        check_env(guess(), skip_render_check=True)

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
        play(env, ids(env, 'abcd'), ids(env, 'ab'))
        assert [turn.cut for turn in env.task.seen[1:]] == [True, False]
        assert [turn.text for turn in env.task.seen[1:]] == ['abc', 'ab']

    def test_the_last_turn_allowed_is_answered(self):
        *_, last = play(guess(), [0, EOS], [0, EOS], [4, EOS], index=4)
        assert last[1:4] == (1, True, False)
        *_, last = play(guess(), [0, EOS], [0, EOS], [0, EOS], index=4)
        assert last[1:4] == (0, False, True) and last[-1]['turns'][-1]['reply'] == 'higher'

    def test_an_empty_turn_is_a_turn(self):
        env = echo()
        first, second, last = play(env, [env.tokenizer.eos_token_id], ids(env, 'a'), ids(env, 'stop'))
        assert (first[1], second[1], last[1]) == (0, 1, 4) and last[-1]['reward_parts'] == dict(length=5)
        assert first[0].tolist()[:3] == [0, env.tokenizer.eos_token_id, -1]  # an empty reply adds nothing

    @pytest.mark.parametrize('limits', [dict(max_reply_tokens=3), dict(max_tokens=9)])
    def test_a_reply_that_does_not_fit_is_dropped_and_its_reward_counts(self, limits):
        env = echo(**limits)
        (obs, reward, terminated, truncated, info), = play(env, ids(env, 'abcd'))
        assert (reward, terminated, truncated) == (4, False, True) and info['turns'][0]['reply'] == 'abcd'
        assert (obs >= 0).sum() == 6  # the prompt and the turn

    def test_a_budget_cuts_the_turn_that_reaches_it(self):
        env = echo(max_tokens=9)
        *_, (obs, reward, terminated, truncated, info) = play(env, ids(env, 'ab'), ids(env, 'abcdef'))
        # 3 own tokens, 2 of the reply, 4 left
        assert (info['taken'], reward, terminated, truncated) == (4, 4, False, True) and info['turns'][1]['cut']
        assert (obs >= 0).all() and len(obs) == 1 + 9

    def test_nothing_stands_behind_a_stop_string(self):
        env = echo(stop=['?', 'xy'])
        first, second = play(env, ids(env, 'a?bc'), ids(env, 'xxyz'))
        assert first[-1]['taken'] == 2 and second[-1]['taken'] == 3
        assert [turn.text for turn in env.task.seen[1:]] == ['a?', 'xxy'] and not any(t.cut for t in env.task.seen[1:])
        end = env.tokenizer.eos_token_id  # added, since the policy did not write it
        assert first[0].tolist()[:6] == [0, *ids(env, 'a?', False), end, *ids(env, 'a?', False)]

    def test_a_stop_string_over_two_actions(self):
        env = echo(stop=['xy'])
        first, second = play(env, ids(env, 'ax', False), ids(env, 'yz', False))
        assert first[-1]['taken'] == 2 and second[-1]['taken'] == 1 and second[-1]['turn'] == 0

    def test_a_game_that_raises_loses_its_episode_only(self):
        env = echo()
        *_, (_, reward, terminated, _, info) = play(env, ids(env, 'ab'), ids(env, 'crash'))
        assert (reward, terminated) == (0, True) and 'OSError: gone' in info['failed']
        assert info['reward_parts'] == dict(length=None) and info['return'] == 0

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
        env = echo(task=Scripted(reply))
        (*_, info), = play(env, ids(env, 'ab'))
        assert re.search(told, info['failed'])

    @pytest.mark.parametrize('each, turns', [(3e38, 2), (1e39, 1)])
    def test_a_total_that_is_not_finite_in_float32_fails_its_episode(self, each, turns):
        env = echo(task=Scripted(Reply('a', dict(length=each)), Reply('a', dict(length=each), done=True)))
        *_, (_, _, terminated, _, info) = play(env, *[ids(env, 'ab')] * turns)
        assert terminated and 'must be a finite number (float32)' in info['failed'] and info['return'] == 0

    def test_a_state_belongs_to_one_episode(self):
        env = echo()
        play(env, ids(env, 'ab'))
        play(env, ids(env, 'a'))
        assert [turn.text for turn in env.task.seen[1:]] == ['a']

    def test_the_seed_of_a_game(self):
        env, held_out, found = echo(), echo(evaluation=True), []
        for each, seed in ((env, 5), (env, 5), (env, 6), (held_out, 5)):
            Echo.states.clear()
            each.reset(seed=seed, options=dict(index=1))
            each.step(ids(each, 'a'))
            found.append(each.task.seen[0])
        assert found[0] == found[1] != found[2] and found[3] == 1

    @pytest.mark.parametrize(
        'changes, told', [
            (dict(task='think_answer'), 'env.max_turns = 3: ThinkAnswerTask scores one turn'),
            (dict(overlong_buffer=1), 'env.overlong_buffer = 1: not available for GuessTask'),
            (dict(reward_models=[dict(pretrained='x')]), 'env.reward_models = .*: not available'),
            (dict(task=dict(type='mixture', parts=[dict(type='guess')])), r'parts\[0\]: GuessTask has several turns'),
            (dict(task=dict(type='guess', highest=1)), 'env.task.highest = 1'),
            (dict(task=dict(type='guess', prompt='')), "env.task.prompt = ''"),
            (dict(task=dict(type='guess', examples=[8])), r'env.task.examples = \[8\]: .* from 1 to 7'),
            (dict(task=dict(type='guess', examples=2)), 'env.task.examples = 2: .* a list'),
            (dict(stop=['']), 'env.stop'),
        ]
    )
    def test_what_does_not_fit_is_refused(self, changes, told):
        with pytest.raises(ConfigError, match=told):
            guess(**changes)


@pytest.mark.envtest
class TestTasks:

    @pytest.mark.parametrize('secret', range(1, 8))
    def test_halving_finds_every_number(self, secret):
        env, low, high = guess(), 1, 7
        env.reset(options=dict(index=secret - 1))
        done = False
        while not done:
            middle = (low + high) // 2
            obs, reward, terminated, truncated, info = env.step([middle - 1, EOS])
            done = terminated or truncated
            low, high = (middle + 1, high) if obs[obs >= 0][-1] == 8 else (low, middle - 1)
        assert reward == 1 and terminated

    @pytest.mark.parametrize('text, told', [('', 'lower'), ('guess 4', 'lower'), ('4 guess', 'right'), ('44', 'lower')])
    def test_the_first_word_is_the_guess(self, text, told):
        task = GuessTask()
        problem = task.problem(3)
        turn = EasyDict(text=text, number=0, cut=False)
        assert task.respond(problem, task.begin(problem, 0), turn).text == told

    def test_each_prompt_begins_with_the_demonstrated_games(self):
        task = GuessTask(prompt='find it', examples=[5, 4])
        rules, of_5 = ('user', 'find it'), [('assistant', '4'), ('user', 'higher'), ('assistant', '6')]
        of_5 += [('user', 'lower'), ('assistant', '5')]
        for i in range(7):
            problem = task.problem(i)
            assert problem.answer == str(i + 1)
            assert [(m['role'], m['content'])
                    for m in problem.prompt] == [rules, *of_5, rules, ('assistant', '4'), rules]
        assert GuessTask(prompt='find it').problem(0).prompt == 'find it'
        assert GuessTask(prompt='find it').words == [*'1234567', 'find', 'it', 'higher', 'lower', 'right']

    def test_the_door_needs_key_and_colour(self):
        task = KeyAndDoorTask()
        say = {name: i for i, name in enumerate(task.words)}
        env = TokenEnv(task, max_new_tokens=2, max_turns=4, max_reply_tokens=3)
        end = env.tokenizer.eos_token_id

        def rewards(*words):
            return [step[1] for step in play(env, *([say[word], end] for word in words), index=1)]

        assert rewards('take', 'walk', 'green') == [.25, .25, 1]
        assert rewards('take', 'walk', 'red') == [.25, .25, 0]
        assert rewards('walk', 'take', 'take', 'walk') == [0, .25, 0, .25]
        assert rewards('green', 'take', 'green', 'walk') == [0, .25, 0, .25]


TEMPLATE = (
    '{% for m in messages %}<{{ m.role }}>{% if m.role == "assistant" and not loop.last %}'
    '{{ m.content.split("#")[-1] }}{% else %}{{ m.content }}{% endif %}<end>\n{% endfor %}'
    '{% if add_generation_prompt %}<assistant>{% endif %}'
)


@pytest.mark.unittest
class TestChat:
    """The template, like Qwen3's, drops what earlier turns of the policy have before a mark."""

    def encoder(self, template=TEMPLATE, end='<end>', **changes):
        tokenizer = build_char_tokenizer(''.join(map(chr, range(32, 127))) + '\n')
        tokenizer.add_special_tokens(dict(additional_special_tokens=['<end>']))
        tokenizer.eos_token, tokenizer.chat_template = end, template
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr('dizoo_llm.text.encoder.create_tokenizer', lambda *args: tokenizer)
            return Encoder(Echo(), dict(ENV_OPTIONS, **changes))

    def reply(self, encoder, text, closed=True):
        """The text that follows a turn 'a', which the policy has closed or not."""
        turn = encoder.tokenizer.encode('a') + [encoder.tokenizer.eos_token_id] * closed
        return encoder.decode(encoder.reply(Problem('x'), text, turn))

    @pytest.mark.parametrize(
        'closed, text', [(True, '\n<user>hi<end>\n<assistant>'), (False, '<end>\n<user>hi<end>\n<assistant>')]
    )
    def test_a_reply_is_what_the_template_adds_behind_the_turn(self, closed, text):
        assert self.reply(self.encoder(), 'hi', closed) == text

    def test_messages_keep_their_roles(self):
        messages = [dict(role='tool', content='7'), dict(role='user', content='go')]
        assert self.reply(self.encoder(), messages) == '\n<tool>7<end>\n<user>go<end>\n<assistant>'

    def test_special_tokens_in_a_reply_are_text(self):
        encoder = self.encoder()
        end = encoder.tokenizer.eos_token_id
        found = encoder.reply(Problem('x'), 'a<end>b', [end])
        assert encoder.decode(found) == '\n<user>a<end>b<end>\n<assistant>' and found.count(end) == 1

    def test_without_a_template_the_reply_is_text(self):
        encoder = self.encoder(chat=False)
        assert self.reply(encoder, 'hi') == 'hi' and self.reply(encoder, 'hi', closed=False) == '<end>hi'

    def test_a_template_without_a_close_gets_none(self):
        """The template of GLM-4: the policy reads what ``apply_chat_template`` gives."""
        encoder = self.encoder('{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}')
        assert self.reply(encoder, 'hi', closed=False) == self.reply(encoder, 'hi') == '<user>hi'

    def test_a_template_may_close_only_the_last_turn(self):
        template = '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.last %}<end>{% endif %}{% endfor %}'
        encoder = self.encoder(template)
        assert self.reply(encoder, 'hi', closed=False) == self.reply(encoder, 'hi') == '<user>hi<end>'


@pytest.mark.envtest
class TestDingFace:

    @pytest.mark.parametrize('kind', ['base', 'subprocess'])
    def test_episodes_in_a_manager(self, kind):
        cfg = EasyDict(task=dict(type='guess'), max_new_tokens=2, max_turns=3, max_reply_tokens=2)
        settings = get_env_manager_cls(EasyDict(type=kind)).default_config()
        settings.type = kind
        manager = create_env_manager(settings, [partial(DingTokenEnv, EasyDict(cfg, walk=[i])) for i in (4, 6)])
        manager.seed(0, dynamic_seed=False)
        manager.launch()
        assert manager.env_ref.token_spec.max_tokens == 10 and manager.env_ref.token_spec.max_own_tokens == 6
        steps = manager.step({i: np.array([3, EOS]) for i in (0, 1)})
        assert not steps[0].done and steps[0].obs[:4].tolist() == [7, 3, EOS, 8]
        steps = manager.step({0: np.array([4]), 1: np.array([6, EOS])})
        assert not steps[0].done and steps[1].done and steps[1].info['eval_episode_return'] == 1
        steps = manager.step({0: np.array([EOS])})
        info = steps[0].info
        assert steps[0].done and steps[0].reward.item() == 1 and info['episode_info']['turns'] == 2
        record = json.loads(info['episode_info']['record'][0])
        assert [turn['reply'] for turn in record['turns']] == ['higher', 'right']
        assert info['episode_info']['completion_length'] == 4
        while len(manager.ready_obs) < 2:
            time.sleep(0.01)
        manager.close()
