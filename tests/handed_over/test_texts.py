"""
Texts: answers of a model, data files, and files of a run. None of them runs code, reaches a terminal as anything but
text, or keeps a run from its end, and each is told in one line.
"""
import json
import os
import tempfile

import pytest
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy

from ding_common import ConfigError, TaskError, read_json_lines
from ding_grpo.collect.failures import check_failures
from ding_grpo.report.command import main as report
from dizoo_llm.envs import TokenEnv
from dizoo_llm.rewards import answers
from dizoo_llm.tasks import create_task, reasoning_gym
from tests.shipped import small

# A text that leaves a file behind if it is run, in whatever folder.
MARK = os.path.join(tempfile.gettempdir(), f'mark-{os.getpid()}')
RUN = f"__import__('pathlib').Path({MARK!r}).touch()"
ESCAPES = '\x1b[2J\x1b]0;title\x07\x9b31m\u202e'
TOWER = '9^{9^{9^{9}}}'
HUNG = 'math-verify took more than 1 s'


@pytest.fixture(autouse=True)
def _folder(own_folder):
    yield
    assert not os.path.exists(MARK)


@pytest.fixture(params=[1.0])
def seconds(request, monkeypatch):
    """The time limit of a text."""
    for servers in (answers.SERVERS, reasoning_gym.SERVERS):
        monkeypatch.setattr(servers, 'seconds', request.param)


def write(path, *rows):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'wb') as f:
        for row in rows:
            f.write((row if isinstance(row, bytes) else json.dumps(row).encode()) + b'\n')
    return path


def one_line(message):
    return '\n' not in message and len(message) < 1000


def reasoning(name):
    pytest.importorskip('reasoning_gym')
    return create_task(dict(type='reasoning_gym', name=name, eval_size=2, size=4, right_by_score=True))


def sums(check='math_verify', **row):
    pytest.importorskip('math_verify')
    return dict(type='file', path=write('a.jsonl', dict(dict(question='a', answer='4'), **row)), check=check)


@pytest.mark.parametrize('name, hangs', [('coin_flip', '1e99999999'), ('propositional_logic', '¬' * 20_000)])
def test_what_reasoning_gym_evaluates_for_ever(seconds, name, hangs, capsys):
    """The other answers of the batch are scored; this one is dropped, and the run says so."""
    task = reasoning(name)
    problem = task.problem(0)
    texts = [hangs, hangs, RUN, f'[{RUN}]', '', 'nonsense', ESCAPES]
    first, again, *others = task.checked_scores([problem] * len(texts), texts)
    assert 'reasoning-gym took more than 1 s for' in first.message == again.message and one_line(first.message)
    assert all(parts['right'] == 0 for parts in others)
    check_failures([first.message, *[None] * 20], 0.1, 'max_failed', 'are dropped')
    told, = capsys.readouterr().out.splitlines()
    assert told.startswith('1 of 21 completions could not be scored and are dropped; the first: ')
    with pytest.raises(TaskError, match='reasoning-gym took more than 1 s'):
        task.checked_score(problem, hangs)


@pytest.mark.parametrize('seconds', [10.0], indirect=True)
def test_what_takes_all_memory(seconds):
    task = reasoning('rubiks_cube')
    found, other = task.checked_scores([task.problem(0)] * 2, ['R9999999999', "R U'"])
    assert isinstance(found, TaskError) or found['right'] == 0
    assert isinstance(other, dict)


def test_what_math_verify_evaluates_for_ever(seconds):
    task = create_task(sums())
    texts = ['100!!!!!', TOWER, '2+2', RUN, '100!!!!!', '4' + ESCAPES, '5']
    found = task.checked_scores([task.problem(0)] * len(texts), texts)
    assert all(f'{HUNG} for' in found[i].message and one_line(found[i].message) for i in (0, 1, 4))
    assert [found[i]['right'] for i in (2, 3, 5, 6)] == [1, 0, 0, 0]


def test_a_mixture_of_evaluating_and_of_comparing_letters(seconds):
    task = create_task(dict(type='mixture', parts=[sums(), sums('exact')]))
    assert task.scores_batches
    problems = [task.problem(i) for i in range(2)] * 2
    first, second, hung, other = task.checked_scores(problems, ['2+2', '2+2', TOWER, '4'])
    assert (first, second, other) == (dict(right=1), dict(right=0), dict(right=1)) and HUNG in hung.message


def test_a_completion_that_fails_costs_its_row_alone(seconds):
    """In the environment, where the collector counts it."""
    env = TokenEnv(create_task(sums(question='1')), tokenizer=dict(chars='1049^{}!'), max_new_tokens=20)
    found = []
    for text in (TOWER, '4'):
        env.reset(seed=0)
        ids = env.tokenizer(text, add_special_tokens=False).input_ids
        info = env.step([*ids, env.tokenizer.eos_token_id])[-1]
        found.append((info['failed'] is None, info['reward_parts']['right']))
    assert found == [(False, None), (True, 1.0)]


def test_what_a_file_of_the_user_evaluates_for_ever():
    write(
        't.py', b'from fractions import Fraction\ndef problems():\n    return [dict(prompt="a", answer="b")]\n'
        b'def score(answer, completion):\n    return float(Fraction(completion) == 1)\n'
    )
    task = create_task(dict(type='file', path='t.py', seconds=1))
    with pytest.raises(TaskError, match='it took longer than 1 s') as caught:
        task.checked_score(task.problem(0), '1e99999999')
    assert one_line(caught.value.message)
    assert task.checked_score(task.problem(0), '1') == dict(score=1)


def test_a_name_of_a_column_in_a_message(capsys):
    with pytest.raises(ConfigError) as caught:
        create_task(dict(type='file', path=write('a.jsonl', {ESCAPES: '1'})))
    caught.value.show()
    told, = capsys.readouterr().err.splitlines()
    assert told.isprintable() and r'\x1b[2J' in told


@pytest.mark.envtest
def test_control_characters_and_markup_in_a_run(capfd):
    """Prompts, answers and kinds; the policy writes such characters itself, for its tokens are single ones."""
    kinds = f'k{ESCAPES}red<b>|x\ny', '[log in](https://e.example)'
    rows = [dict(question=f'{i}{ESCAPES}=', answer='\x1b[2J', kind=kinds[i % 2]) for i in range(4)]
    main, create = small('think_answer_grpo')
    main.env.task = dict(type='file', path=write('a.jsonl', *rows), kind='kind')
    main.env.tokenizer = dict(chars='0123=;[]mJ\x1b\x07\r\x9b\u202e|tile')
    main.policy.learn.learner = dict(hook=dict(report=dict(type='grpo_report', ext_args=dict(progress_freq=1))))
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)
    out, err = capfd.readouterr()
    table, records = 'log/collector/completions.txt', 'log/collector/completions.jsonl'
    files = table, 'findings.md', records, 'log/evaluator/evaluations.jsonl'
    read = dict({name: open(f'run/{name}').read() for name in files}, out=out, err=err)
    for name, text in read.items():
        assert all(line.isprintable() for line in text.split("\n")), (name, text[:1500])
    assert r'\x1b' in read[table] and r'\x1b' in out
    prompts = {record['prompt'] for record in read_json_lines(f'run/{records}')}
    assert prompts <= {row['question'] for row in rows}  # files of records keep the text
    done = CliRunner().invoke(report, ['run'])
    assert done.exit_code == 0 and one_line(done.output.strip())
