"""Environments of gymnasium as games in text: which game is played, what a turn does, what an episode leaves."""
import gc
import re

import gymnasium
import pytest
from gymnasium import spaces

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import GymTextTask, Turn, create_task
from dizoo_llm.tasks.faces import Blackjack, Lake, Taxi

LAKE = dict(
    type='gym_text', id='FrozenLake-v1', env_kwargs=dict(desc=['SSSS', 'SHSH', 'SSSH', 'HSSG'], is_slippery=False)
)
TAXI = next(id for id in ('Taxi-v4', 'Taxi-v3') if id in gymnasium.registry)


def lake(**changes):
    return create_task(dict(LAKE, **changes))


def dialogue(task, index, *texts, seed=0):
    """Text, parts, done and anchor of the reply to each turn."""
    problem = task.checked_problem(index)
    state = task.checked_begin(problem, seed)
    return [tuple(task.checked_respond(problem, state, Turn(text, i, False))) for i, text in enumerate(texts)]


def index_of(task, prompt):
    return next(i for i in range(len(task)) if task.problem(i).prompt == prompt)


class Counter(gymnasium.Env):
    """Adds what it draws; 3 breaks it."""
    observation_space, action_space = spaces.Box(0, 1), spaces.Discrete(4)
    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sum = 0
        return 0, {}

    def step(self, action):
        if action == 3:
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


class Raises(Plain):

    def __init__(self):
        raise OSError('no face')


class Silent:
    prompt = text = Plain.prompt


if 'Counter-v0' not in gymnasium.registry:
    gymnasium.register('Counter-v0', Counter)
HERE = f'{__name__}:'


def counter(**changes):
    return GymTextTask('Counter-v0', f'{HERE}Plain', **changes)


@pytest.mark.unittest
class TestGame:

    def test_a_game_by_hand(self):
        task = lake()
        first, second, third, last = dialogue(
            task, index_of(task, 'lake row2 column1'), 'right', 'jump', 'down', 'right now'
        )
        assert first == ('row2 column2', dict(reward=0, invalid=0), False, 10)
        assert second == ('invalid', dict(reward=0, invalid=1), False, 10)  # nothing is stepped
        assert third == ('row3 column2', dict(reward=0, invalid=0), False, 14)
        assert last == ('row3 column3', dict(reward=1, invalid=0), True, 15)

    def test_a_hole_ends_the_game(self):
        task = lake()
        (*_, done, _), = dialogue(task, index_of(task, 'lake row1 column0'), 'right')
        assert done

    @pytest.mark.parametrize('text', ['', ' ', 'row0 left', 'leftright', 'LEFT', '0', '<eos>'])
    def test_anything_else_is_invalid(self, text):
        assert dialogue(lake(), 0, text)[0][0] == 'invalid'

    def test_the_time_limit_of_gymnasium_ends_the_game(self):
        task = lake(env_kwargs=dict(LAKE['env_kwargs'], max_episode_steps=2))
        replies = dialogue(task, index_of(task, 'lake row0 column0'), 'left', 'jump', 'left')
        assert [done for *_, done, _ in replies] == [False, False, True]

    def test_every_safe_square_once(self):
        task = lake(distinct=True)
        assert sorted(task.problem(i).prompt for i in range(len(task))) == sorted(
            f'lake row{row} column{column}' for row, line in enumerate(LAKE['env_kwargs']['desc'])
            for column, letter in enumerate(line) if letter == 'S'
        ) and len(task) == 11
        assert task.evaluation() is task

    def test_evaluation_has_other_games(self):
        task = lake(games=5, eval_size=3)
        assert [len(task), len(task.evaluation())] == [5, 3]
        seeds = [[part.problem(i).metadata['seed'] for i in range(len(part))] for part in (task, task.evaluation())]
        assert seeds == [[0, 1, 2, 3, 4], [5, 6, 7]]
        task = lake(distinct=True, eval_size=4)
        prompts = [{part.problem(i).prompt for i in range(len(part))} for part in (task, task.evaluation())]
        assert list(map(len, prompts)) == [7, 4] and not prompts[0] & prompts[1]

    def test_a_problem_is_a_function_of_its_index(self):
        task = lake()
        once = [task.problem(i) for i in range(50)]
        assert [task.problem(i) for i in reversed(range(50))][::-1] == once == [lake().problem(i) for i in range(50)]

    def test_rows_of_a_group_draw_the_same_and_groups_do_not(self):
        task = counter()
        turns = ['1'] * 5
        assert dialogue(task, 0, *turns, seed=7) == dialogue(task, 0, *turns, seed=7)
        assert dialogue(task, 0, *turns, seed=7) != dialogue(task, 0, *turns, seed=8)
        env, other = (TokenEnv(lake(env_kwargs=dict(is_slippery=True)), max_turns=9, max_new_tokens=1) for _ in 'ab')
        down = env.tokenizer.convert_tokens_to_ids('down')
        for seed in range(5):
            for each in (env, other):
                each.reset(seed=seed)
            for _ in range(9):
                (obs, *one), (same, *two) = env.step(down), other.step(down)
                assert obs.tolist() == same.tolist() and one == two
                if one[1] or one[2]:
                    break

    def test_episodes_at_the_same_time_do_not_touch(self):
        task = counter()
        alone = dialogue(task, 0, '1', '1', seed=1)
        problem = task.problem(0)
        states = [task.checked_begin(problem, 1) for _ in range(2)]
        assert states[0].env is not states[1].env
        task.problem(1)  # as a reset does while an episode runs
        for number in range(2):
            for state in states:
                assert tuple(task.respond(problem, state, Turn('1', number, False))) == alone[number]

    def test_environments_are_used_again(self):
        task, problem = counter(), counter().problem(0)
        task.begin(problem, 0)
        gc.collect()
        made = Counter.made
        for _ in range(20):
            state = task.checked_begin(problem, 0)
            task.respond(problem, state, Turn('1', 0, False))
            task.problem(0)
        del state
        gc.collect()
        assert Counter.made <= made + 1  # one plays while another gives the prompt

    def test_a_broken_environment_loses_its_episode_and_is_not_used_again(self):
        task = counter()
        problem = task.problem(0)
        state = task.checked_begin(problem, 0)
        broken = state.env
        with pytest.raises(TaskError) as caught:
            task.checked_respond(problem, state, Turn('3', 0, False))
        assert re.search('GymTextTask raised OSError: gone', caught.value.message)
        del state, caught  # the traceback refers to the state
        gc.collect()
        assert task.checked_begin(problem, 0).env is not broken and dialogue(task, 0, '2')[0][1]['reward'] == 1

    def test_a_continuous_observation_is_no_anchor(self):
        assert dialogue(counter(), 0, '1', 'x')[0][3] is None

    @pytest.mark.parametrize(
        'changes, told', [
            (dict(id='NoLake-v1', face=HERE + 'Plain'), "env.task.id = 'NoLake-v1': gymnasium cannot create it"),
            (dict(id='CartPole-v1'), "env.task.face = None: CartPole-v1 has no shipped face, set 'module:Class'"),
            (dict(env_kwargs=dict(size=3)), "env.task.env_kwargs = {'size': 3}: gymnasium cannot create it"),
            (dict(face='no_module:Face'), "env.task.face = 'no_module:Face': there is no module"),
            (dict(face=HERE + 'Face'), 'the module has no .Face.'),
            (dict(face=HERE + 'Raises'), 'cannot be created .OSError: no face'),
            (dict(face=HERE + 'Silent'), 'must be a class with the methods .* no action'),
            (dict(games=0), 'env.task.games = 0: must be an integer of at least 1'),
            (dict(distinct=True, eval_size=11), 'env.task.eval_size = 11: only 11 of 1011 games'),
        ]
    )
    def test_wrong_arguments(self, changes, told):
        with pytest.raises(ConfigError, match=told):
            lake(**dict(dict(env_kwargs={}), **changes) if 'id' in changes else changes)


@pytest.mark.unittest
class TestFaces:

    def test_the_words_of_a_face_are_all_that_it_says(self):
        faces = {'FrozenLake-v1': Lake, 'FrozenLake8x8-v1': Lake, TAXI: Taxi, 'Blackjack-v1': Blackjack}
        for id, face in faces.items():
            task = create_task(dict(type='gym_text', id=id, games=300))
            said = {word for i in range(300) for word in task.problem(i).prompt.split()}
            for i in range(20):
                problem = task.problem(i)
                state = task.begin(problem, i)
                for number in range(8):
                    action = face.actions[(i + number) % len(face.actions)]
                    reply = task.respond(problem, state, Turn(action, number, False))
                    said |= set(reply.text.split())
                    if reply.done:
                        break
            assert said <= set(task.words)

    def test_taxi_reads_what_gymnasium_encodes(self):
        env, places = gymnasium.make(TAXI).unwrapped, ['red', 'green', 'yellow', 'blue', 'taxi']
        for obs in range(500):
            row, column, passenger, goal = env.decode(obs)
            assert Taxi().text(obs) == f'row{row} column{column} from {places[passenger]} to {places[goal]}'

    def test_blackjack_in_words(self):
        assert Blackjack().prompt((14, 10, 0)) == 'cards hand 14 hard dealer 10'
        assert Blackjack().text((21, 1, 1)) == 'hand 21 soft dealer 1'

    def test_anchors_of_blackjack(self):
        task = create_task(dict(type='gym_text', id='Blackjack-v1'))
        problem = task.problem(0)
        (*_, anchor), = dialogue(task, 0, 'x')
        assert Blackjack().prompt(anchor) == problem.prompt and hash(anchor)

    def test_a_face_without_words_needs_a_tokenizer(self):
        with pytest.raises(ConfigError, match='env.tokenizer = None: GymTextTask must define either words or chars'):
            TokenEnv(counter())
        assert TokenEnv(counter(games=3), tokenizer=dict(chars='at 0123456789')).max_prompt_length == 4
