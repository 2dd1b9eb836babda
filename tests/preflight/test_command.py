"""The command ``python -m ding_grpo.preflight``."""
import pytest
from click.testing import CliRunner

from ding_grpo.preflight import learning
from ding_grpo.preflight.command import main
from tests.dizoo_llm.helper import write

REWARDS = '''
def last(completion, answer):
    return float(completion.split()[-1:] == [answer])


def anywhere(completion, answer):
    return float(answer in completion)
'''
LAST = ['--reward', 'rewards.py:last', '--no-trial']
ROWS = [dict(question=f'Which letter is number {i}?', answer=chr(97 + i)) for i in range(8)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'rewards.py').write_text(REWARDS, encoding='utf-8')
    write(tmp_path / 'train.jsonl', ROWS)
    return tmp_path


def told(*arguments, code=0):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_a_healthy_reward_is_learned(files):
    text = told('--data', 'train.jsonl', '--reward', 'rewards.py:last')
    assert 'right completions (bare, for example' in text and '8 of 8 are paid' in text
    assert 'learning\n  a tiny model on 4 problems' in text and 'findings: none (preflight.html)' in text
    with open('preflight.html', encoding='utf-8') as f:
        assert f.read().count('nothing found') == 3


def test_a_hack_is_shown(files):
    text = told('--data', 'train.jsonl', '--reward', 'rewards.py:anywhere', '--no-trial', '--out', 'a.html', code=1)
    line, = (line for line in text.splitlines() if 'finding' in line and 'junk_pays' in line)
    assert '(list of answers) gets 1' in line and 'findings: 1 (a.html)' in text and 'learning' not in text
    with open('a.html', encoding='utf-8') as f:
        page = f.read()
    assert '<b>junk_pays</b>' in page and 'list of answers' in page


def test_a_reward_that_is_not_learned(files):
    """It pays for everything, with the weight of the config."""
    (files / 'always.py').write_text('def always(completion, answer):\n    return 1.0\n', encoding='utf-8')
    env = dict(task=dict(type='file', path='train.jsonl', reward='always.py:always'), reward_weights=dict(always=2.0))
    part = learning.of_learning(env, 'bare', 2.0, updates=1)
    assert [f['cause'] for f in part.findings] == ['not_learned']
    assert part.lines == ['a tiny model on 4 problems, 1 updates of 128 rows'] + [
        f'{how}: greedy reward 2 before, 2 after'
        for how in ('from the reward alone', 'with demonstrations in the first half')
    ]


def test_what_is_not_paid_is_not_tried(files):
    (files / 'never.py').write_text('def never(completion, answer):\n    return 0.0\n', encoding='utf-8')
    text = told('--data', 'train.jsonl', '--reward', 'never.py:never', code=1)
    assert 'finding, no_success' in text and 'learning' not in text


def test_long_completions_are_left_out(files, tmp_path):
    write(tmp_path / 'long.jsonl', [dict(row, answer=' '.join([row['answer']] * 300)) for row in ROWS])
    task = dict(type='file', path='long.jsonl', reward='rewards.py:last')
    part = learning.of_learning(dict(task=task), 'bare', 1.0)
    assert part.lines == ['left out: right completions have 300 words or characters'] and part.findings == []
    part = learning.of_learning(dict(task=dict(task, path='train.jsonl')), 'bare', 1.0, seconds=0.1)
    assert part.lines == ['left out: its scores would take 768 s'] and part.findings == []


def test_a_scorer_that_ends_the_process(files):
    """It fails for this text alone, and the page is written. Its own processes may end as they like."""
    (files / 'exits.py').write_text(
        'import os\n\n\ndef exits(completion, answer):\n'
        '    if os.fork() == 0:\n        os._exit(0)\n'
        "    return os._exit(7) if 'the the' in completion else float(completion == answer)\n",
        encoding='utf-8'
    )
    text = told('--data', 'train.jsonl', '--reward', 'exits.py:exits', '--no-trial', code=1)
    line, = (line for line in text.splitlines() if 'finding,' in line)
    assert 'junk_not_scored: the scorer fails for junk (repeated): FileTask raised SystemExit: os._exit(7)' in line
    assert text.endswith('findings: 1 (preflight.html)\n') and (files / 'preflight.html').exists()


def test_a_model_that_does_not_exist_ends_the_command_at_once(files, monkeypatch):
    """The hub is asked once."""
    asked = []

    def model_info(self, name, timeout):
        asked.append(name)
        raise OSError('no such host')

    monkeypatch.setattr('huggingface_hub.HfApi.model_info', model_info)
    text = told('--data', 'train.jsonl', '--reward', 'rewards.py:last', '--model', 'nobody/nothing', code=2)
    assert text.splitlines()[-1] == (
        "Error: env.tokenizer.pretrained = 'nobody/nothing': not a folder, not in the cache, and not available from "
        'the hub (OSError: no such host)'
    )
    assert asked == ['nobody/nothing'] and 'data\n' not in text


def test_data_of_verl(files, tmp_path):
    rows = [
        dict(
            data_source='letters',
            prompt=[dict(role='user', content=row['question'])],
            reward_model=dict(ground_truth=row['answer'])
        ) for row in ROWS
    ]
    write(tmp_path / 'verl.jsonl', rows)
    (tmp_path / 'score.py').write_text(
        'def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n'
        '    return float(solution_str == ground_truth)\n',
        encoding='utf-8'
    )
    text = told('--verl', 'verl.jsonl', '--reward', 'score.py:compute_score', '--no-trial')
    assert '8 of 8 are paid' in text and 'findings: none' in text


def test_a_column_of_answers(files, tmp_path):
    write(tmp_path / 'other.jsonl', [dict(question=row['question'], target=row['answer']) for row in ROWS])
    (tmp_path / 'other.py').write_text(
        'def last(completion, target):\n    return completion == target\n', encoding='utf-8'
    )
    given = ['--data', 'other.jsonl', '--reward', 'other.py:last', '--no-trial']
    assert 'no problem has an answer' in told(*given) and '8 of 8 are paid' in told(*given, '--answer', 'target')


def test_rewards_of_several_turns_are_not_examined(files):
    text = told('-c', 'guess_grpo')
    assert 'reward\n  not examined: this task has several turns, and its score follows all of them\n' in text
    with open('preflight.html', encoding='utf-8') as f:
        assert f.read().count('nothing found') == 2  # of data and prompts


def test_a_config():
    assert 'prompts have 19 to 19 tokens' in told('-c', 'think_answer_grpo', '--no-trial', '--out', '/dev/null')


@pytest.mark.parametrize(
    'arguments, line', [
        ([], 'Give one of --config, --data and --trl.'),
        (['-c', 'think_answer_grpo', '--reward', 'a:b'], '--reward belongs to --data.'),
        (['--data', 'train.jsonl', 'exp_name=a'], 'KEY=VALUE belongs to --config.'),
        (['--data', 'train.jsonl', '--out', 'no/such/a.html'], 'must be a file in a folder that exists'),
        (['--data', 'train.jsonl'], '--reward: data need one'),
        (['--data', 'train.jsonl', *LAST, '--sample'], '--sample: needs a --model'),
        (['-c', 'cartpole_grpo'], "create_config.env.type = 'gymnasium_env': must be token_env."),
    ]
)
def test_a_wrong_command_and_what_cannot_be_examined(files, arguments, line):
    assert line in told(*arguments, code=2)
