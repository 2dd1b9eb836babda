"""Games in text, of gymnasium and of textarena: which game is played, what a turn does, what an episode leaves."""
import gc
import random
import sys

import gymnasium
import pytest
from gymnasium import spaces

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import GymTextTask, Turn, create_task
from dizoo_llm.tasks.faces import Blackjack, Lake, Taxi
from dizoo_llm.tasks.textarena import _own_numbers
from tests.dizoo_llm.helper import problems, sides

DESC = ['SSSS', 'SHSH', 'SSSH', 'HSSG']
TAXI = next(id for id in ('Taxi-v4', 'Taxi-v3') if id in gymnasium.registry)


def lake(max_episode_steps=100, **changes):
    env_kwargs = dict(desc=DESC, is_slippery=False, max_episode_steps=max_episode_steps)
    return create_task(dict(type='gym_text', id='FrozenLake-v1', env_kwargs=env_kwargs, **changes))


def dialogue(task, index, *texts, seed=0):
    """The reply to each turn, up to the end of the game. The index may be a prompt."""
    index = index if isinstance(index, int) else [problem.prompt for problem in problems(task)].index(index)
    problem = task.checked_problem(index)
    state, found = task.checked_begin(problem, seed), []
    for number, text in enumerate(texts):
        found.append(task.checked_respond(problem, state, Turn(text, number, cut=False)))
        if found[-1].done:
            break
    return found


class Counter(gymnasium.Env):
    """Adds what it draws; 3 breaks it for ever."""
    observation_space, action_space = spaces.Box(0, 1), spaces.Discrete(4)
    broken = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        assert not self.broken
        self.sum = 0
        return 0, {}

    def step(self, action):
        if action == 3:
            self.broken = True
            raise OSError('gone')
        self.sum += int(self.np_random.integers(100))
        return self.sum, action / 2, action == 2, False, {}


class Plain:
    """A face without words."""

    def prompt(self, obs):
        return f'at {obs}'

    def text(self, obs):
        return str(obs)

    def action(self, text):
        return int(text) if text in '0123' else None


if 'Counter-v0' not in gymnasium.registry:
    gymnasium.register('Counter-v0', Counter)


def counter(**changes):
    return GymTextTask('Counter-v0', f'{__name__}:Plain', **changes)


class TestGame:

    def test_a_game_by_hand(self):
        assert dialogue(lake(), 'lake row2 column1', 'right', 'jump', 'down', 'right now') == [
            ('row2 column2', dict(reward=0, invalid=0), False, 10),
            ('invalid', dict(reward=0, invalid=1), False, 10),  # nothing is stepped
            ('row3 column2', dict(reward=0, invalid=0), False, 14),
            ('row3 column3', dict(reward=1, invalid=0), True, 15),
        ]
        assert dialogue(lake(), 'lake row1 column0', 'right')[0].done  # in a hole
        for text in ('', ' ', 'row0 left', 'leftright', 'LEFT', '0', '<eos>'):
            assert dialogue(lake(), 0, text)[0].text == 'invalid'

    def test_the_time_limit_of_gymnasium_ends_the_game(self):
        replies = dialogue(lake(max_episode_steps=2), 'lake row0 column0', 'left', 'jump', 'left')
        assert [reply.done for reply in replies] == [False, False, True]

    def test_every_safe_square_once(self):
        task = lake(distinct=True)
        assert task.evaluation() is task and sorted(problem.prompt for problem in problems(task)) == sorted(
            f'lake row{row} column{column}' for row, line in enumerate(DESC)
            for column, letter in enumerate(line) if letter == 'S'
        )

    def test_evaluation_has_other_games(self):
        seeds = sides(lake(games=5, eval_size=3), lambda problem: problem.metadata['seed'])
        assert seeds == [[0, 1, 2, 3, 4], [5, 6, 7]]
        trained, held_out = sides(lake(distinct=True, eval_size=4), lambda problem: problem.prompt)
        assert (len(set(trained)), len(set(held_out))) == (7, 4) and not set(trained) & set(held_out)

    def test_rows_of_a_group_draw_the_same_and_groups_do_not(self):
        task, turns = counter(), ['1'] * 5
        assert dialogue(task, 0, *turns, seed=7) == dialogue(task, 0, *turns, seed=7)
        assert dialogue(task, 0, *turns, seed=7) != dialogue(task, 0, *turns, seed=8)

    def test_episodes_at_the_same_time_do_not_touch(self):
        task = counter()
        alone, problem = dialogue(task, 0, '1', '1', seed=1), task.problem(0)
        states = [task.checked_begin(problem, 1) for _ in range(2)]
        task.problem(1)  # as a reset does while an episode runs
        for number in range(2):
            for state in states:
                assert task.respond(problem, state, Turn('1', number, False)) == alone[number]

    def test_a_broken_environment_is_not_used_again(self):
        task = counter()
        with pytest.raises(TaskError, match='GymTextTask raised OSError: gone') as caught:
            dialogue(task, 0, '3')
        del caught  # the traceback refers to the state
        gc.collect()
        assert dialogue(task, 0, '2')[0].parts['reward'] == 1

    def test_a_continuous_observation_is_no_anchor(self):
        assert dialogue(counter(), 0, '1')[0].anchor is None


class TestFaces:

    def test_the_words_of_a_face_are_all_that_it_says(self):
        faces = {'FrozenLake-v1': Lake, 'FrozenLake8x8-v1': Lake, TAXI: Taxi, 'Blackjack-v1': Blackjack}
        for id, face in faces.items():
            task = create_task(dict(type='gym_text', id=id, games=300))
            said = {word for problem in problems(task) for word in problem.prompt.split()}
            for i in range(20):
                actions = [face.actions[(i + number) % len(face.actions)] for number in range(8)]
                said.update(*(reply.text.split() for reply in dialogue(task, i, *actions, seed=i)))
            assert said <= set(task.words)

    def test_taxi_reads_what_gymnasium_encodes(self):
        env, places = gymnasium.make(TAXI).unwrapped, ['red', 'green', 'yellow', 'blue', 'taxi']
        for obs in range(500):
            row, column, passenger, goal = env.decode(obs)
            assert Taxi().text(obs) == f'row{row} column{column} from {places[passenger]} to {places[goal]}'

    def test_blackjack_in_words(self):
        assert Blackjack().prompt((14, 10, 0)) == 'cards hand 14 hard dealer 10'
        assert Blackjack().text((21, 1, 1)) == 'hand 21 soft dealer 1'
        task = create_task(dict(type='gym_text', id='Blackjack-v1'))
        anchor = dialogue(task, 0, 'x')[0].anchor
        assert Blackjack().prompt(anchor) == task.problem(0).prompt and hash(anchor)

    def test_a_face_without_words_needs_a_tokenizer(self):
        with pytest.raises(ConfigError, match='env.tokenizer = None: GymTextTask must define either words or chars'):
            TokenEnv(counter())
        assert TokenEnv(counter(games=3), tokenizer=dict(chars='at 0123456789')).max_prompt_length == 4


def arena(id='GuessTheNumber-v0', **options):
    return create_task(dict(type='textarena', id=id, **options))


@pytest.mark.envtest
class TestTextArena:

    def test_halving_finds_the_number(self):
        game, secrets = arena(env_kwargs=dict(max_number=7), games=20), set()
        for i in range(len(game)):
            assert 'between 1 and 7' in game.problem(i).prompt
            said, low, high = [], 1, 7
            while True:
                middle = (low + high) // 2
                said.append(f'I say [{middle}].')
                reply = dialogue(game, i, *said)[-1]
                if reply.done:
                    break
                higher = 'higher' in reply.text
                assert reply.parts == dict(reward=0.0, invalid=0.0) and len(said) < 3
                assert reply.text == f"The target number is {'higher' if higher else 'lower'}."
                low, high = (middle + 1, high) if higher else (low, middle - 1)
            assert reply.parts == dict(reward=1.0, invalid=0.0)
            secrets.add(middle)
        assert len(secrets) > 3

    def test_the_second_invalid_move_ends_the_game(self):
        first, second = dialogue(arena(), 0, 'none', 'none')
        assert 'invalid move' in first.text and first.parts == dict(reward=0.0, invalid=1.0) and not first.done
        assert second.done and second.parts == dict(reward=0.0, invalid=1.0)

    def test_each_episode_draws_its_own_numbers_and_leaves_python_s(self):
        random.seed(5)
        before, numbers, wanted = random.getstate(), random.Random(3), random.Random(3)
        game, moves = arena('2048-v0'), ['up', 'left', 'down', 'right'] * 5
        alone, same, other = (dialogue(game, 0, *moves, seed=seed) for seed in (1, 1, 2))
        assert alone == same != other  # the rows of a group are equal
        for _ in range(2):  # each turn goes on with them
            with _own_numbers(numbers):
                assert random.random() == wanted.random()
        assert random.getstate() == before

    def test_held_out_games_are_others(self):
        game = arena(games=5, eval_size=3)
        assert (len(game), len(game.evaluation())) == (5, 3) and game.evaluation().problem(0).metadata['seed'] == 5
        assert arena(games=5).evaluation().problem(0) == arena(games=5).problem(0)


@pytest.mark.envtest
class TestRefused:

    def test_a_game_that_needs_a_download(self, monkeypatch):
        import textarena

        def start():
            raise LookupError("Resource 'words' not found. >>> nltk.download('words')")

        registration = textarena.envs.registration
        monkeypatch.setitem(registration.ENV_REGISTRY, 'Words-v0', registration.EnvSpec('Words-v0', start, None))
        with pytest.raises(ConfigError, match='it needs a download: python -m nltk.downloader words'):
            arena('Words-v0')

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, 'textarena', None)
        with pytest.raises(ConfigError, match=r"pip install '.\[textarena\]'"):
            arena()
