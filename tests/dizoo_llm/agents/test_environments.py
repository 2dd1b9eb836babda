"""Environment classes with tools: the rules of TRL's ``GRPOTrainer(environment_factory=...)``."""
import json
import threading
import time

import pytest

from ding_common import ConfigError
from dizoo_llm.tasks import create_task

from tests.dizoo_llm.agents import environments
from tests.dizoo_llm.agents.environments import SEEN, Child, Counter, record
from tests.dizoo_llm.agents.programs import user
from tests.dizoo_llm.agents.episodes import begin, play, read, turn

ROWS = [dict(prompt=[user(f'q{i}')]) for i in range(4)]


@pytest.fixture
def env_of(opened):
    SEEN.clear()

    def make(problems=ROWS, options={}, factory=Counter, reward=record, task=None, **more):
        task = task or create_task(dict(type='environment', factory=factory, problems=problems, reward=reward, **more))
        limits = dict(max_prompt_length=200, max_new_tokens=200, max_turns=9, max_tokens=2000)
        return opened(task, **{**limits, **options})

    return make


def call(name, **arguments):
    return f'<tool_call>{json.dumps(dict(name=name, arguments=arguments))}</tool_call>'


def results():
    """Contents of the tool messages that the last reward function saw."""
    return [message['content'] for message in SEEN[-1]['completion'] if message['role'] == 'tool']


@pytest.mark.parametrize(
    'row, last', [
        (dict(), 'q'),
        (dict(text=' go'), 'q go'),
        (dict(text=[dict(type='text', text=' go')]), 'q go'),
        (dict(text=''), 'q'),
    ]
)
def test_what_reset_returns_is_added_to_the_last_message(env_of, row, last):
    prompt = [dict(role='system', content='s'), user('q')]
    env = env_of([dict(row, prompt=prompt, other=3)])
    (first, ), _ = play(env, 'x')
    assert env.tokenizer.decode(first).endswith(
        f'<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n{last}<|im_end|>\n<|im_start|>assistant\n'
    )
    assert SEEN[0]['environment'].resets == [dict(prompt=prompt, other=3)] and SEEN[0]['prompt'][0] == prompt[0]


def test_a_prompt_in_text_and_none_at_all(env_of):
    env = env_of([dict(prompt='q', text='!'), dict(text='w')])
    for index, text in enumerate(['q!', 'w']):
        play(env, 'x', index=index)
        assert SEEN[-1]['prompt'] == [user(text)]
    play(env_of(None), 'x')
    assert SEEN[-1]['environment'].resets[-1] == dict(prompt=[user('')])


def test_tools_are_public_methods_of_the_class_and_its_bases(env_of):
    env = env_of(factory=Child)
    text = env.tokenizer.decode(read(env.reset(options=dict(index=0))[0]))
    offered = text.partition('system\n')[2].partition(' <|im_end|>')[0].split()
    assert offered == ['add', 'fixed', 'leave', 'none', 'parts', 'picture', 'sleep', 'stop', 'twice', 'wait']


@pytest.mark.parametrize(
    'text, told', [
        (call('add', number=3), ['total 3']),
        (call('add', number=3) + call('add', number=4), ['total 3', 'total 7']),
        (call('wait', number=1) + call('add', number=3) + call('wait', number=2),
         ['total 3', 'waited at 3', 'waited at 3']),
        (call('add', number=100), ["{'error': 'too much'}"]),
        (call('wait', number=10), ["{'error': 'no time'}"]),
        (call('subtract', number=3), ["{'error': 'Tool subtract not found.'}"]),
        (call('_private'), ["{'error': 'Tool _private not found.'}"]),
        (call('reset'), ["{'error': 'Tool reset not found.'}"]),
        (call('get_reward'), ["{'error': 'Tool get_reward not found.'}"]),
        (call('value') + call('of'), ["{'error': 'Tool value not found.'}", "{'error': 'Tool of not found.'}"]),
        (call('add'), ['''{'error': "Counter.add() missing 1 required positional argument: 'number'"}''']),
        (call('wait', x=1) + call('add', number=1),
         ['''{'error': "Counter.wait() got an unexpected keyword argument 'x'"}''', 'total 1']),
        (call('add', number='4'), ['total 4']),
        (call('none'), ['None']),
        (call('fixed', number=3), ['3']),
        (call('stop'), ["{'error': ''}"]),
        (call('parts'), [[dict(type='text', text='one '), dict(type='text', text='two')]]),
        ('<tool_call>{"name": "none"}</tool_call>', ['None']),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
         ["{'error': '" + Counter.__module__ + ".Counter.add() argument after ** must be a mapping, not list'}"]),
        ('<tool_call>{"name": "wait", "arguments": "{}"}</tool_call>',
         ["{'error': '" + Counter.__module__ + ".Counter.wait() argument after ** must be a mapping, not str'}"]),
    ]
)  # yapf: disable
def test_results_of_calls(env_of, text, told):
    env = env_of()
    (first, second), (_, reward, *_, info) = play(env, text, 'done')
    assert results() == told and info['failed'] is None
    shown = [''.join(part['text'] for part in each) if isinstance(each, list) else each for each in told]
    after = ''.join(f'<|im_start|>tool\n{each}<|im_end|>\n' for each in shown)
    assert env.tokenizer.decode(second[len(first):]) == f'{text}<|im_end|>\n{after}<|im_start|>assistant\n'


def test_the_messages_that_a_reward_function_sees(env_of):
    play(env_of(), f'Let me.\n{call("add", number=3)}', '<think>\nHm.\n</think>\n\n done ')
    function = dict(name='add', arguments=dict(number=3))
    assert SEEN[0]['completion'] == [
        dict(role='assistant', content='Let me.', tool_calls=[dict(type='function', function=function)]),
        dict(role='tool', name='add', content='total 3'),
        dict(role='assistant', content='done', reasoning_content='Hm.'),
    ]


def test_a_malformed_call_keeps_its_white_space_as_under_trl(env_of):
    for text, content in ((' \n<tool_call>{"name": "add"} ', None), (' \nno call ', 'no call')):
        play(env_of(), text)
        message, = SEEN[-1]['completion']
        assert message == dict(role='assistant', content=text if content is None else content)


def test_a_call_in_thoughts_is_not_executed(env_of):
    *_, (_, reward, *_) = play(env_of(), f'<think>{call("add", number=3)}</think>done')
    assert reward == 1.0 and results() == []


@pytest.mark.parametrize(
    'limits, options, turns, executed', [
        (dict(), {}, 9, 8),
        (dict(max_tool_calling_iterations=2), {}, 3, 2),
        (dict(max_tool_calling_iterations=0), {}, 1, 0),
        ({}, dict(max_turns=3), 3, 3),
    ]
)
def test_limits_of_calls(env_of, limits, options, turns, executed):
    texts = [call('add', number=1)] * turns
    texts[8:] = ['done'] * (turns > 8)
    _, (_, reward, terminated, *_, info) = play(env_of(options=options, **limits), *texts)
    assert len(info['turns']) == turns and info['failed'] is None
    assert info['reward_parts'] == dict(record=1.0, Counter=float(executed))
    assert SEEN[0]['completion'][-1]['role'] == 'assistant' and len(results()) == min(executed, turns - 1)
    assert terminated is (executed < 3 or turns == 9)


def test_results_that_leave_no_room_are_dropped(env_of):
    env = env_of(options=dict(max_tokens=170))
    _, (_, reward, _, truncated, info) = play(env, call('add', number=3), call('add', number=4) + ' ' * 9)
    assert truncated and info['failed'] is None and reward == 1.0 + 7.0
    assert [message['role'] for message in SEEN[0]['completion']] == ['assistant', 'tool', 'assistant']


def test_rewards_by_name_and_weight(env_of):
    rows = [dict(prompt='q', kind=kind) for kind in ('some', 'none')]
    reward = [environments.later, dict(mine=environments.some)['mine'], record]
    env = env_of(rows, reward=reward, weights=dict(later=0.5, Counter=10))
    _, (_, value, *_, info) = play(env, call('add', number=3), 'done')
    assert info['reward_parts'] == dict(later=3.0, some=2.0, record=1.0, Counter=3.0)
    assert value == 1.5 + 2 + 1 + 30
    _, (_, value, *_, info) = play(env, 'done', index=1)
    assert info['reward_parts'] == dict(later=1.0, some=None, record=1.0, Counter=0.0) and value == 1.5
    named = env_of(rows, reward=dict(mine='tests.dizoo_llm.agents.environments:record'))
    assert play(named, 'done')[1][-1]['reward_parts'] == dict(mine=1.0, Counter=0.0)
    assert SEEN[-1]['columns'] == dict(kind=['some'])


def test_several_environments(env_of):
    factory = dict(count=Counter, child='tests.dizoo_llm.agents.environments:Child', slow=environments.Slow)
    rows = [dict(prompt='q', environment=name) for name in factory]
    env = env_of(rows, factory=factory, reward=record)
    found = {}
    for index, name in enumerate(factory):
        (first, _), (*_, info) = play(env, call('look') + call('twice') + call('add', number=3), 'x', index=index)
        found[name] = (info['reward_parts'], results())
        assert ('look' in env.tokenizer.decode(first)) is (name == 'slow')
        assert SEEN[-1]['columns'] == dict(environment=[name])
    assert found['count'] == (
        dict(record=1.0, Counter=3.0, Child=None,
             Slow=None), ["{'error': 'Tool look not found.'}", "{'error': 'Tool twice not found.'}", 'total 3']
    )
    assert found['child'][0] == dict(record=1.0, Counter=None, Child=3.0, Slow=None)
    assert found['slow'][0] == dict(record=1.0, Counter=None, Child=None, Slow=5.0)
    assert SEEN[-1]['environment'].columns == dict(prompt='q')


@pytest.mark.parametrize(
    'given, text, told', [
        (dict(problems=[dict(prompt='q' * 300)]), 'x', 'env.max_prompt_length = 200'),
        (dict(problems=[dict(prompt='q', text=3)]), 'x', 'reset returned 3, must return text'),
        (dict(reward=environments.two), 'x', 'two returned 2 entries, must return a list of 1: it gets one row'),
        (dict(reward=environments.fails), 'x', 'RuntimeError: no judge'),
        ({}, call('picture'), 'is not text, and this model reads text only'),
        ({}, call('leave'), 'SystemExit: 3'),
    ]
)
def test_what_costs_a_row(env_of, given, text, told):
    _, (_, value, *_, info) = play(env_of(**given), text)
    assert told in info['failed'] and value == 0


def test_rows_change_neither_each_other_nor_the_data(env_of):
    rows = [dict(prompt='q', cards=[1, 2])]
    env = env_of(rows, factory=environments.Changing)
    for _ in range(2):
        play(env, 'x')
        assert SEEN[-1]['prompt'] == [user('q2')] and SEEN[-1]['columns'] == dict(cards=[[1]])
    assert rows[0]['cards'] == [1, 2]


def test_columns_and_arguments_may_have_any_name(env_of):
    env = env_of([dict(prompt='q ', function='sin', instance=3)], factory=environments.Names,
                 reward=[environments.named, record], options=dict(max_new_tokens=400))  # yapf: disable
    text = call('plot', function='cos') + call('draw', function='tan') + call('plot', self=1)
    (first, _), (*_, info) = play(env, text, 'done')
    assert 'q sin 3' in env.tokenizer.decode(first) and info['reward_parts'] == dict(named=3.0, record=1.0)
    assert results()[0] == 'plot of cos' and 'error' in results()[1] and results()[2] == 'picture of tan'


def test_a_coroutine_that_exits_costs_its_row_and_not_the_event_loop(env_of):
    rows = [dict(prompt='q', function='f', instance=3)]
    first = env_of(rows, factory=environments.Names, reward=record, seconds=5.0)
    second = env_of(task=first.task)
    second.reset(options=dict(index=0))
    _, (*_, info) = play(first, call('quit'))
    assert 'SystemExit: 3' in info['failed']
    *_, info = second.step(turn(second, 'done'))
    assert info['failed'] is None and play(first, 'done')[1][-1]['failed'] is None


def test_instances_are_isolated_and_used_again(env_of):
    first = env_of()
    second = env_of(task=first.task)
    made = Counter.made
    for env in (first, second):
        env.reset(options=dict(index=0))
        env.step(turn(env, call('add', number=1 if env is first else 5)))
    for env, total in ((first, 1), (second, 5)):
        *_, info = env.step(turn(env, 'done'))
        assert info['reward_parts']['Counter'] == total
    for _ in range(3):
        play(first, 'done')
    assert Counter.made == made + 2
    assert all(len(seen['environment'].threads) == 1 for seen in SEEN)
    assert {threading.get_ident()} != SEEN[0]['environment'].threads
    for _ in range(2):
        play(first, call('leave'))
    play(first, 'done')
    assert Counter.made == made + 3  # those that failed are not used again


def test_a_function_as_factory(env_of):
    made = Counter.made
    _, (_, reward, *_) = play(env_of(factory='tests.dizoo_llm.agents.environments:make'), 'x')
    assert reward == 1.0 and Counter.made == made + 2  # one to read its tools


def test_a_tool_that_hangs_costs_its_row_and_not_others(env_of):
    first = env_of(seconds=0.5)
    envs = [first, *(env_of(task=first.task) for _ in range(19))]
    begun, failed = time.monotonic(), []
    begin(envs, [0] * 20)
    for i, env in enumerate(envs):
        env.begin_step(turn(env, call('sleep') if i % 2 else call('add', number=i)))
    for i, env in enumerate(envs):
        *_, info = env.step([0])
        if i % 2 == 0:
            *_, info = env.step(turn(env, 'done'))
        failed.append(info['failed'])
    assert time.monotonic() - begun < 2.5  # one such tool takes 3 s
    for i, told in enumerate(failed):
        assert told is None if i % 2 == 0 else 'took more than env.task.seconds = 0.5' in told
    sleeping = {thread for thread in threading.enumerate() if thread.name == 'environment'}
    assert all(seen['environment'].total in range(0, 20, 2) for seen in SEEN) and len(sleeping) >= 10


@pytest.mark.parametrize(
    'change, told', [
        (dict(factory='tests.dizoo_llm.agents.environments:Conter'), "did you mean 'Counter'"),
        (dict(factory=3), 'env.task.factory = 3: must be a class'),
        (dict(factory=object), 'object has no method reset'),
        (dict(factory=environments.Undescribed), 'Undescribed.bare cannot be offered to a model'),
        (dict(factory=environments.Strict, problems=[dict(prompt='q', x=1)]), 'an unexpected keyword argument .x'),
        (dict(factory=environments.Other, reward=None), 'env.task.reward = None: set a function'),
        (dict(reward='record'), "env.task.reward = 'record': must be a function"),
        (dict(reward=[record, record]), "the name 'record' occurs twice"),
        (dict(reward=dict(Counter=record)), "the name 'Counter' occurs twice"),
        (dict(reward=environments.misnamed, problems=[dict(prompt='q', answer=1)]), "'answr': .*did you mean 'answer"),
        (dict(reward=environments.of_trainer), "'trainer_state': only the trainer of TRL has it"),
        (dict(weights=dict(recrd=1)), "env.task.weights.recrd = 1: .*did you mean 'record"),
        (dict(weights=[1.0, 2.0]), r'env.task.weights = \[1.0, 2.0\]: must be a dict'),
        (dict(weights=dict(record='much')), "env.task.weights.record = 'much': must be a number"),
        (dict(return_part='x'), "env.task.return_part = 'x': must be a part"),
        (dict(problems=[dict(prompt='q', image='x')]), "the column 'image', and the model reads text only"),
        (dict(problems=[dict(prompt=[dict(role='user', content=[dict(type='image')])])]), 'must be text or messages'),
        (dict(factory=dict(a=Counter), problems=[dict(prompt='q')]), "environment = None: must be one of 'a'"),
        (dict(max_tool_calling_iterations=-1), 'env.task.max_tool_calling_iterations = -1: must be'),
    ],
    ids=range(19)
)  # yapf: disable
def test_one_line_for_what_cannot_run(change, told):
    given = dict(type='environment', factory=Counter, problems=ROWS, reward=record)
    with pytest.raises(ConfigError, match=told):
        create_task({**given, **change})


def test_a_column_without_images_is_no_image():
    assert len(create_task(dict(type='environment', factory=Counter, problems=[dict(prompt='q', image=None)]))) == 1
