"""Options of tasks and environments that cannot be used: the message names the option, and what is wrong."""
import pytest

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import create_task
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.dizoo_llm.functions import CALC, HERE, Counted, Product
from tests.dizoo_llm.helper import Prompts


class Raises:

    def __init__(self):
        raise OSError('no face')


class Silent:
    prompt = text = None


FACES = f'{__name__}:'
SUMS = dict(type='arithmetic', operations='+', high=9, eval_size=8)
SPELL = dict(type='reasoning_gym', name='spell_backward', eval_size=6)
THREE = dict(min_trials=3, max_trials=3)
SCORED = dict(SPELL, weights=dict(score=0.0, right=2.0))
# Options that can be used, and changes to them that cannot.
BASES = dict(
    file=dict(path='gone.py'),
    arithmetic=dict(operations='+-', low=1, high=9, examples=2, eval_size=20),
    gym_text=dict(id='FrozenLake-v1', env_kwargs=dict(desc=['SSSS', 'SHSH', 'SSSH', 'HSSG'])),
    textarena=dict(id='GuessTheNumber-v0'),
    tools=dict(task=Product(), functions=[CALC]),
    reasoning_gym=dict(SPELL, config=dict(min_word_len=5, max_word_len=7), eval_size=100),
)
TASKS = [
    ('think_answer', dict(type='think_anser'), "did you mean 'think_answer'"),
    ('think_answer', dict(type=None), 'unknown task'),
    ('think_answer', dict(size=3), 'size'),
    ('guess', dict(highest=1), 'env.task.highest = 1'),
    ('guess', dict(prompt=''), "env.task.prompt = ''"),
    ('guess', dict(examples=[8]), r'env.task.examples = \[8\]: .* from 1 to 7'),
    ('products', dict(eval_size=4624), 'env.task.eval_size = 4624: must be .* at most 4623'),
    ('file', dict(), "env.task.path = 'gone.py': there is no such file"),
    ('python', dict(file='gone.py'), "env.task.type = 'python' is 'file' now: dict"),
    ('file', dict(seconds=0), 'env.task.seconds = 0: must be a number'),
    ('arithmetic', dict(negative=1.5), 'negative = 1.5: must be True or False'),
    ('arithmetic', dict(near=-1), 'near = -1: must be a number in'),
    ('arithmetic', dict(train_high=8), 'train_high = 8: must be an integer of at least 9'),
    ('arithmetic', dict(train_high=1000), 'train_high = 1000 with env.task.low = 1: must .* at most 1,000,000 prob'),
    ('arithmetic', dict(operations='/'), r"operations = '/': must be some of '\+-\*'"),
    ('arithmetic', dict(examples=-1), 'examples = -1: must be an integer of at least 0'),
    ('arithmetic', dict(eval_size=200), 'none is left for training'),
    ('arithmetic', dict(high=0), 'high = 0 with env.task.low = 1: must be at least as large'),
    ('mixture', dict(parts=[]), r'env.task.parts = \[\]'),
    ('mixture', dict(parts=[dict(SUMS, weight=0)]), r'parts\[0\].weight = 0: must be'),
    ('mixture', dict(parts=[SUMS, dict(SUMS, high='x')]), r'env.task.parts\[1\].high'),
    ('mixture', dict(parts=[SUMS, dict(type='think_answer')]), "'solved'; they must be equal"),
    ('mixture', dict(parts=[SUMS, dict(SUMS, operations='*', weight=1e-9)]), 'an epoch over all problems would have'),
    ('mixture', dict(parts=[SUMS, SCORED]), 'weights 1 and 2'),
    ('gym_text', dict(id='NoLake-v1', face=FACES + 'Silent'), "task.id = 'NoLake-v1'.*: gymnasium cannot create it"),
    ('gym_text', dict(id='CartPole-v1', env_kwargs={}), 'face = None: CartPole-v1 has no shipped face, set .module'),
    ('gym_text', dict(env_kwargs=dict(size=3)), "env.task.env_kwargs = {'size': 3}: gymnasium cannot create it"),
    ('gym_text', dict(face='no_module:Face'), "env.task.face = 'no_module:Face': there is no module"),
    ('gym_text', dict(face=FACES + 'Raises'), 'cannot be created .OSError: no face'),
    ('gym_text', dict(face=FACES + 'Silent'), 'must be a class with the methods .* no prompt'),
    ('gym_text', dict(games=0), 'env.task.games = 0: must be an integer of at least 1'),
    ('textarena', dict(games=0), 'env.task.games = 0: must be an integer of at least 1'),
    ('gym_text', dict(distinct=True, eval_size=11), 'env.task.eval_size = 11: only 11 of 1011 games'),
    ('textarena', dict(id='GuessTheNumbr-v0'), "no such game; .*'GuessTheNumber-v0'"),
    ('textarena', dict(id='TicTacToe-v0'), 'textarena cannot create the game .*number of players'),
    ('textarena', dict(id='QuantumTicTacToe-v0'), 'several players'),
    ('textarena', dict(id='Countdown-v0'), 'does not work .* must be text'),
    ('tools', dict(functions=[]), r'env.task.functions = None: must be a list of at least one'),
    ('tools', dict(functions=[CALC] * 2), 'occurs twice'),
    ('tools', dict(functions=[HERE + 'untyped']), 'cannot be offered .*type hint'),
    ('tools', dict(functions=[HERE + 'listed']), 'argument numbers must have .* int, float, str or bool'),
    ('tools', dict(functions=[HERE + 'Product']), 'must be a function'),
    ('tools', dict(seconds=0), 'env.task.seconds = 0: must be a number in'),
    ('tools', dict(max_chars=0), 'env.task.max_chars = 0'),
    ('tools', dict(max_calls=0), 'env.task.max_calls = 0'),
    ('tools', dict(examples=-1), 'env.task.examples = -1'),
    ('tools', dict(examples=2), 'env.task.examples = 2: of 2 problems none is left'),
    ('tools', dict(demonstration=HERE + 'raising', examples=1), 'env.task.demonstration raised IndexError'),
    ('tools', dict(demonstration=HERE + 'only_call', examples=1), 'dialogue has not ended after 100 turns'),
    ('tools', dict(task=dict(type='guess')), 'has several turns'),
    ('tools', dict(task=dict(type='gess')), 'env.task.task.type = .gess.'),
    ('tools', dict(task=Counted()), "a part 'calls'"),
    ('reasoning_gym', dict(name='spell_backwards'), "env.task.name = 'spell_backwards': did you mean 'spell_backward'"),
    ('reasoning_gym', dict(name=None), 'set exactly one of them'),
    ('reasoning_gym', dict(config=dict(min_word_len=9, max_word_len=3)), 'env.task.config'),
    ('reasoning_gym', dict(answer_in='tags'), "env.task.answer_in = 'tags'"),
    ('reasoning_gym', dict(template='ask'), 'env.task.template'),
    ('reasoning_gym', dict(name=None, config=None, mixture=[dict(nam='gcd')]), r'env.task.mixture\[0\]'),
    ('reasoning_gym', dict(name=None, config=None, mixture=[dict(name='gcd', weight='2')]), 'and a positive weight'),
    ('reasoning_gym', dict(name=None, config=None, mixture=['gcd']), r'env.task.mixture = .*: must be a list of dicts'),
    ('reasoning_gym', dict(size=0), 'env.task.size = 0: must be an integer of at least 1'),
    ('reasoning_gym', dict(eval_size=-1), 'env.task.eval_size = -1'),
    ('reasoning_gym', dict(seed=None), 'env.task.seed = None'),
    ('reasoning_gym', dict(weights=dict(score='a', right=1)), 'env.task.weights'),
    ('reasoning_gym', dict(name='countdown', config={}), "'countdown': its scorer executes answers as Python"),
    ('reasoning_gym', dict(name='complex_arithmetic', config={}), "scorer gives 1.00 for 'nan', which answers no pro"),
    ('reasoning_gym', dict(name='ransom_note', config={}), 'differ between processes'),
    ('reasoning_gym', dict(name='graph_color', config={}), 'no reference answer; set env.task.right_by_score = True'),
    ('reasoning_gym', dict(name='coin_flip', config=THREE, eval_size=100), 'only . for evaluation .* of one another'),
    ('reasoning_gym', dict(name='rush_hour', config={}, right_by_score=True, examples=1), 'without reference answers'),
    ('reasoning_gym', dict(name='gcd', config=dict(max_value=2), examples=9), 'examples = 9: .* for examples .* Lower'),
]


@pytest.mark.envtest
@pytest.mark.parametrize('name, changes, told', TASKS, ids=[f'{name}-{told:.30}' for name, _, told in TASKS])
def test_a_task_refuses(name, changes, told):
    cfg = dict(dict(type=name), **dict(BASES.get(name, {}), **changes))
    if 'reasoning_gym' in repr(cfg):
        pytest.importorskip('reasoning_gym')
    with pytest.raises(ConfigError, match=told):
        create_task(cfg).evaluation().problem(0)


GUESS = dict(task='guess', max_turns=3)
MANY = dict(task=Prompts(*'a' * 20_001), tokenizer=dict(chars='a'))
MODELS = r'env.reward_models\[0\].*'
ENVIRONMENTS = [
    (dict(return_part='x'), r"env.return_part = 'x': must be a part of the reward \(answer, format, sol"),
    (dict(task=Prompts('a', return_part='x')), r"Prompts.return_part = 'x': must be a part of the reward \(right"),
    (dict(max_new_tokens=8, overlong_buffer=9), 'env.overlong_buffer = 9: must be from 1 to env.max_new_tokens = 8'),
    (dict(max_turns=3), 'env.max_turns = 3: ThinkAnswerTask scores one turn'),
    (dict(GUESS, overlong_buffer=1), 'env.overlong_buffer = 1: not available for GuessTask'),
    (dict(GUESS, reward_models=[dict(pretrained='x')]), 'env.reward_models = .*: not available'),
    (dict(GUESS, stop=['']), 'env.stop'),
    (dict(reward_weights=dict(anwser=1)), "env.reward_weights.anwser = 1: .*'answer'"),
    (dict(reward_weights=dict(answer='1')), "env.reward_weights.answer = '1': must be"),
    (dict(reward_models=[dict(pretrained='')]), MODELS + "pretrained = ''"),
    (dict(reward_models=[dict(pretrained='x', wieght=1)]), MODELS + 'wieght'),
    (dict(reward_models=[dict(pretrained='x', device='gpu')]), MODELS + "device = 'gpu'"),
    (dict(reward_models=[dict(pretrained='x', name='answer')]), "the name 'answer' occurs twice"),
    (dict(reward_models=[dict(pretrained='x')] * 2), "the name 'reward_model' occurs twice"),
    (dict(tokenizer=dict(chars='')), 'env.tokenizer.chars'),
    (dict(tokenizer=dict(chars='aba')), 'env.tokenizer.chars'),
    *((dict(tokenizer=dict(words=words)), 'env.tokenizer.words') for words in (['a b'], [''], ['<eos>'])),
    (dict(tokenizer=dict(pretrained='.')), 'env.tokenizer.pretrained'),
    (dict(tokenizer=build_word_tokenizer('a')), "env.tokenizer = .* '' with 4 tokens: must be dict.* save_pretrained"),
    (dict(task=Prompts('ab'), tokenizer=dict(chars='bc')), 'it has no token for'),
    (
        dict(task=Prompts('a', return_part='rihgt')),
        r"Prompts.return_part = 'rihgt': must be a part of the .* \(right\)"
    ),
    (MANY, 'env.max_prompt_length = None: the task has 40002 problems'),
]


@pytest.mark.envtest
@pytest.mark.parametrize('options, told', ENVIRONMENTS, ids=[told[:40] for _, told in ENVIRONMENTS])
def test_an_environment_refuses(options, told, own_folder):
    with pytest.raises(ConfigError, match=told):
        TokenEnv(**options)
