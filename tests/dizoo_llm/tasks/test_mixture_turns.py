"""Mixtures with tasks of several turns: which task answers a turn, and where an episode ends."""
import pytest

from ding_common import ConfigError
from dizoo_llm import Problem, Reply, Task
from dizoo_llm.envs import TokenEnv
from dizoo_llm.envs.demonstrations import Demonstrations
from dizoo_llm.tasks import TASK_REGISTRY, create_task
from tests.dizoo_llm.helper import play
from tests.tasks import Game


@TASK_REGISTRY.register('test_letter')
class Letter(Task):
    """One turn, right if it is the letter of the problem. Problem 1 is held out."""
    weights = dict(right=1.0, letters=0.0)
    return_part = 'right'
    must_end = True

    def __init__(self, held_out: bool = False):
        self.held_out = held_out

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem('b' if self.held_out else 'a', 'b' if self.held_out else 'a', dict(kind='letter'))

    def score(self, problem, completion):
        return dict(right=float(completion == problem.answer), letters=float(len(completion)))

    def demonstration(self, problem):
        return problem.answer

    def evaluation(self):
        return Letter(True)


@TASK_REGISTRY.register('test_letters')
class Letters(Letter):
    """The same, scored in batches."""
    sizes = []

    def score(self, problem, completion):
        return Task.score(self, problem, completion)

    def score_batch(self, problems, completions):
        self.sizes.append(len(problems))
        return [Letter.score(self, problem, text) for problem, text in zip(problems, completions)]


@TASK_REGISTRY.register('test_echo')
class Echo(Game):
    """Repeats a turn and rewards its length, until it is ``x``. ``states`` has those of all episodes."""
    weights, prompts = dict(right=1.0, turns=0.0), 'cd'
    return_part = 'right'
    states = []

    def begin(self, problem, seed):
        return [seed]

    def respond(self, problem, state, turn):
        if len(state) == 1:
            self.states.append(state)
        state.append(turn.text)
        if turn.text == 'raise':
            raise ValueError('no echo')
        parts = dict(right=float(turn.text != 'x'), turns=1.0)
        return Reply(turn.text, parts, turn.text == 'x', anchor=(problem.prompt, turn.text))

    def demonstration(self, problem, turns=()):
        return 'x' if turns else problem.prompt


LETTER, ECHO = dict(type='test_letter'), dict(type='test_echo')


def mixture(*parts, **options):
    return create_task(dict(type='mixture', parts=list(parts), **options))


def env_of(*parts, evaluation=False, max_turns=4, **options):
    task = mixture(*parts, **options)
    tokenizer = dict(chars='abcdeirsx')
    env = TokenEnv(task, evaluation=evaluation, tokenizer=tokenizer, max_turns=max_turns, max_new_tokens=6)
    return env, {env.problems.checked_problem(i).prompt: i for i in range(len(env.problems))}


def of(env, places, prompt, *turns):
    return play(env, *turns, index=places[prompt])


def test_each_task_answers_its_own_problems():
    env, places = env_of(dict(LETTER, weight=2), ECHO)
    assert env.has_turns and set(places) == {'a', 'c', 'd'}
    (_, reward, terminated, truncated, info), = of(env, places, 'a', 'a')
    assert (reward, terminated, truncated, info['kind']) == (1.0, True, False, 'letter')
    assert info['reward_parts'] == dict(right=1.0, letters=1.0, turns=None)
    first, last = of(env, places, 'd', 'ab', 'x')
    assert first[1:4] == (1.0, False, False) and last[1:4] == (0.0, True, False)
    assert env.render() == 'dab<eos>abx<eos>'
    assert last[4]['reward_parts'] == dict(right=1.0, letters=None, turns=2.0) and last[4]['kind'] == 'Echo'


def test_weights_count_problems_of_tasks_of_several_turns_too():
    task = mixture(dict(LETTER, weight=3), dict(ECHO, weight=1))
    kinds = [task.problem(i).metadata['kind'] for i in range(len(task))]
    assert (kinds.count('letter'), kinds.count('Echo')) == (6, 2)
    assert mixture(LETTER, LETTER).has_turns is False


def test_a_part_ends_at_its_own_limit_of_turns_as_truncated():
    env, places = env_of(dict(ECHO, max_turns=2), LETTER, dict(type='mixture', parts=[ECHO]))
    for index in range(len(env.problems)):
        problem = env.problems.checked_problem(index)
        if problem.prompt == 'a':
            continue
        most = 2 if problem.metadata['part'] == 0 else 4
        steps = play(env, *['ab'] * most, index=index)
        assert [step[1:4] for step in steps] == [(1.0, False, False)] * (most - 1) + [(1.0, False, True)]
        assert len(steps[-1][4]['turns']) == most


def test_the_smaller_limit_counts_where_mixtures_are_within_each_other():
    inner = dict(type='mixture', parts=[dict(ECHO, max_turns=3)])
    for own, most in ((2, 2), (4, 3), (None, 3)):
        task = mixture(dict(inner, max_turns=own), LETTER)
        found = {task.turn_limit(task.problem(i)) for i in range(len(task)) if task.problem(i).prompt != 'a'}
        assert found == {most}


def test_a_cut_answer_of_a_part_that_must_end_is_not_right():
    env, places = env_of(LETTER, ECHO)
    env.reset(options=dict(index=places['a']))
    letters = env.tokenizer.encode('aaaaaa')
    env.task._tasks[0].score = lambda problem, completion: dict(right=1.0, letters=0.0)
    _, reward, terminated, truncated, info = env.step(letters)
    assert (reward, info['reward_parts']['right']) == (0.0, 0.0)
    assert info['turns'][0]['cut']
    assert of(env, places, 'a', 'a')[0][1] == 1.0


def test_a_batch_scorer_scores_singly_beside_a_task_of_several_turns():
    env, places = env_of(dict(type='test_letters'), ECHO)
    assert not env.scoring.in_batches
    env.reset(options=dict(index=places['a'], defer_score=True))
    Letters.sizes.clear()
    _, reward, _, _, info = env.step([*env.tokenizer.encode('a'), env.tokenizer.eos_token_id])
    assert (reward, Letters.sizes, 'unscored' in info) == (1.0, [1], False)
    assert mixture(dict(type='test_letters'), LETTER).scores_batches


def test_demonstrations_of_both_kinds():
    env, places = env_of(LETTER, ECHO)
    assert env.task.demonstrates
    shown = Demonstrations(env)
    found = {}
    for prompt, index in places.items():
        shown.check(index)
        row, reward = shown.played(index)
        found[prompt] = (env.tokenizer.decode([i for i in row['labels'] if i >= 0]), reward)
    assert found == dict(a=('a<eos>', 1.0), c=('c<eos>x<eos>', 1.0), d=('d<eos>x<eos>', 1.0))


def test_evaluation_asks_for_the_held_out_problems_of_each_task():
    env, places = env_of(LETTER, ECHO, evaluation=True)
    assert set(places) == {'b', 'c', 'd'}
    assert of(env, places, 'b', 'b')[0][1] == 1.0


def test_a_game_gets_the_seed_of_its_group_and_a_state_of_its_own():
    env, places = env_of(LETTER, ECHO)
    Echo.states.clear()
    for _ in range(2):
        env.reset(seed=3, options=dict(index=places['c']))
        env.step([*env.tokenizer.encode('e'), env.tokenizer.eos_token_id])
    first, second = Echo.states
    assert first == second and first is not second and first[1:] == ['e'] and first[0] > 0


def test_the_anchor_is_that_of_the_task():
    env, places = env_of(LETTER, ECHO)
    assert of(env, places, 'c', 'ab')[0][4]['anchor'] == ('c', 'ab')


def test_what_a_task_raises_fails_its_episode_by_name():
    env, places = env_of(LETTER, ECHO)
    (_, reward, terminated, _, info), = of(env, places, 'c', 'raise')
    assert (reward, terminated) == (0.0, True) and 'Echo raised ValueError: no echo' in info['failed']


def test_a_return_part_that_all_tasks_have_takes_the_place_of_unequal_ones():
    guess = dict(type='guess')  # reports the reward, and has the part right
    with pytest.raises(ConfigError, match="Letter has return_part = 'right', GuessTask has None; they must be equal"):
        mixture(LETTER, guess)
    assert mixture(guess, LETTER, return_part='right').return_part == 'right'
    with pytest.raises(ConfigError, match=r"env.task.return_part = 'letters': must be a part of the reward \(right\)"):
        mixture(LETTER, guess, return_part='letters')
    with pytest.raises(ConfigError, match="env.task.return_part = 'letters': must be 'right', the part that Letter"):
        mixture(LETTER, LETTER, return_part='letters')


@pytest.mark.parametrize(
    'parts, told', [
        ([dict(LETTER, max_turns=2), ECHO], r'parts\[0\].max_turns = 2: Letter has one turn'),
        ([LETTER, dict(ECHO, max_turns=0)], r'parts\[1\].max_turns = 0: must be an integer of at least 1'),
        ([LETTER, dict(ECHO, max_turns=5)], 'env.max_turns = 4: env.task has problems of up to 5 turns'),
    ]
)
def test_what_cannot_be_mixed_is_named(parts, told):
    with pytest.raises(ConfigError, match=told):
        env_of(*parts)


def test_an_agent_is_trained_alone():

    async def run(problem, client):
        return 1.0

    agent = dict(type='agent', run=run, problems=[dict(question='a')])
    with pytest.raises(ConfigError, match=r'env.task.parts\[1\]: AgentTask has its own environment'):
        mixture(LETTER, agent)
