import random
import sys

import pytest

from ding_common import ConfigError
from dizoo_llm.tasks import Turn, create_task


def task(id='GuessTheNumber-v0', **options):
    return create_task(dict(type='textarena', id=id, **options))


def play(game, problem, seed, actions):
    """Replies to the actions, up to the end of the episode."""
    state, replies = game.checked_begin(problem, seed), []
    for number, action in enumerate(actions):
        replies.append(game.checked_respond(problem, state, Turn(action, number, cut=False)))
        if replies[-1].done:
            break
    return replies


@pytest.mark.envtest
class TestGames:

    def test_halving_finds_the_number(self):
        game = task(env_kwargs=dict(max_number=7), games=20)
        secrets = set()
        for i in range(len(game)):
            problem, low, high = game.checked_problem(i), 1, 7
            assert 'between 1 and 7' in problem.prompt
            state = game.checked_begin(problem, 0)
            for number in range(3):
                middle = (low + high) // 2
                reply = game.checked_respond(problem, state, Turn(f'I say [{middle}].', number, cut=False))
                if reply.done:
                    break
                assert reply.parts == dict(reward=0.0, invalid=0.0)
                assert reply.text == f"The target number is {'higher' if 'higher' in reply.text else 'lower'}."
                low, high = (middle + 1, high) if 'higher' in reply.text else (low, middle - 1)
            assert reply.done and reply.parts == dict(reward=1.0, invalid=0.0)
            secrets.add(middle)
        assert len(secrets) > 3

    def test_brackets_are_added(self):
        assert [r.text for r in play(task(), task().problem(0), 0, ['2'])][0].startswith('The target number is')

    def test_the_second_invalid_move_ends_the_game(self):
        game = task()
        first, second = play(game, game.problem(0), 0, ['none', 'none'])
        assert 'invalid move' in first.text and first.parts == dict(reward=0.0, invalid=1.0) and not first.done
        assert second.done and second.parts == dict(reward=0.0, invalid=1.0)

    def test_python_s_random_numbers_stay_as_they_are(self):
        random.seed(5)
        before = random.getstate()
        game = task('2048-v0')
        play(game, game.problem(0), 3, ['up', 'left'] * 5)
        assert random.getstate() == before

    def test_each_episode_draws_its_own_numbers(self):
        game, moves = task('2048-v0'), ['up', 'left', 'down', 'right'] * 5
        problem = game.problem(0)
        alone = play(game, problem, 1, moves)
        assert play(game, problem, 1, moves) == alone  # as the rows of a group
        assert play(game, problem, 2, moves) != alone
        states = [game.checked_begin(problem, seed) for seed in (1, 2)]
        among = [
            [game.checked_respond(problem, state, Turn(move, i, cut=False)) for state in states][0]
            for i, move in enumerate(moves[:len(alone)])
        ]
        assert among == alone

    def test_held_out_games_are_others(self):
        game = task(games=5, eval_size=3)
        assert (len(game), len(game.evaluation())) == (5, 3) and game.evaluation().problem(0).metadata['seed'] == 5
        assert task(games=5).evaluation().problem(0) == task(games=5).problem(0)


@pytest.mark.envtest
class TestRefused:

    @pytest.mark.parametrize(
        'options, told', [
            (dict(id='GuessTheNumbr-v0'), "no such game; .*'GuessTheNumber-v0'"),
            (dict(id='TicTacToe-v0'), 'textarena cannot create the game .*number of players'),
            (dict(id='QuantumTicTacToe-v0'), 'several players'),
            (dict(id='GuessWho-v0'), 'cannot create the game .*API key'),
            (dict(id='Countdown-v0'), 'does not work .* must be text'),
            (dict(id='GuessTheNumber-v0', env_kwargs=dict(most=3)), r"env_kwargs = \{'most': 3\}: textarena cannot"),
            (dict(id='GuessTheNumber-v0', games=0), 'env.task.games = 0'),
        ]
    )
    def test_in_one_line(self, options, told, monkeypatch):
        monkeypatch.delenv('OPENROUTER_API_KEY', raising=False)
        with pytest.raises(ConfigError, match=told):
            task(**options)

    def test_a_game_that_needs_a_download(self, monkeypatch):
        import textarena

        def make(id):
            raise LookupError("Resource 'words' not found. >>> nltk.download('words')")

        monkeypatch.setattr(textarena, 'make', make)
        with pytest.raises(ConfigError, match='it needs a download: python -m nltk.downloader words'):
            task('Wordle-v0')

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, 'textarena', None)
        with pytest.raises(ConfigError, match=r"pip install '.\[textarena\]'"):
            task()
