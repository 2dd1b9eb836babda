"""Scripts for TRL run until they make their trainer, with a stand-in for ``trl``: five forms that scripts have."""
import os
import sys

import pytest

from ding_common import ConfigError
from ding_grpo.preflight.trl_script import trl_script
from tests.dizoo_llm.helper import write
from tests.preflight.test_command import ROWS, told
from tests.processes import ROOT, Process, run_program

SCRIPTS = os.path.join(ROOT, 'tests', 'preflight', 'scripts')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sys.argv, sys.path[:], sys.modules['__main__'], sys.meta_path[:]
    yield tmp_path
    assert (sys.argv, sys.path, sys.modules['__main__'], sys.meta_path) == before
    assert not [name for name in sys.modules if name.split('.')[0] == 'trl']


def examined(name, *arguments, code=0):
    return told('--trl', os.path.join(SCRIPTS, f'{name}.py'), '--no-trial', *arguments, code=code)


def made(name, *arguments):
    with trl_script(os.path.join(SCRIPTS, f'{name}.py'), arguments) as script:
        return script


def own(folder, text):
    (folder / 'script.py').write_text(text, encoding='utf-8')
    return str(folder / 'script.py')


def test_plain_strings():
    text = examined('plain')
    assert '8 rows; model Qwen/Qwen2.5-0.5B-Instruct\n  reward last_word, weight 1\n' in text
    assert '8 of 8 are paid' in text and 'findings: none' in text
    assert made('plain').max_new_tokens == 64


def test_accuracy_reward_is_that_of_math_verify(folder):
    pytest.importorskip('math_verify')
    rows = [dict(prompt=f'Half of {2 * i}?', solution=f'${i}$') for i in range(1, 9)]
    path = own(
        folder, f'from trl import GRPOTrainer\nfrom trl.rewards import accuracy_reward\n'
        f'GRPOTrainer("m", accuracy_reward, train_dataset={rows!r})'
    )
    text = told('--trl', path, '--no-trial', '--answer', 'solution')
    assert 'reward accuracy_reward, weight 1\n' in text and '8 of 8 are paid' in text and 'findings: none' in text


def test_conversations():
    """Completions are messages then; TRL's own reward is left out, a model is not loaded, and keeps its name."""
    pytest.importorskip('datasets')
    text = examined('chat')
    assert '8 rows; model some/model\n  reward correct, weight 1\n' in text and '4 problems held out' in text
    assert "not examined: think_format_reward, which is TRL's own" in text
    assert '(tag, for example' in text and '    right: 2, 100 %' in text and made('chat').max_new_tokens == 32


def test_several_rewards_with_weights():
    text = examined('weighted', code=1)
    assert 'reward mentions, weight 1\n  reward polite, weight 0.5\n' in text
    assert 'not examined: the reward model some/reward-model' in text and '    right: 1.5, 100 %' in text
    assert 'finding, junk_pays' in text and 'finding, constant_part: the reward part polite' in text


def test_rewards_that_wait_and_objects():
    """A reward sees the trainer before its first step; the trainer is a subclass, made where all exceptions pass."""
    text = examined('waits')
    assert 'reward asked, weight 1\n  reward Short, weight 1' in text and 'not reached' not in text
    assert '    right: 1, 100 %' in text and '    repeated: -0.0008' in text


def test_a_reward_that_takes_no_other_columns_fails_as_in_trl():
    text = examined('waits', '--', 'strict', code=1)
    assert 'finding, not_scored' in text and 'strict() got an unexpected keyword argument' in text


def test_arguments(folder):
    write(folder / 'rows.jsonl', ROWS)
    given = ['--dataset_name', 'rows.jsonl', '--learning_rate', '1e-6', '--note', 'kept', '--reward_weights', '1', '2']
    text = examined('parsed', '--', *given, '--rewards', 'exact', 'first', '--model_name_or_path', 'm', '--bf16')
    assert '8 rows; model m\n  reward exact, weight 1\n  reward first, weight 2\n' in text
    assert '    right: 2, 100 %' in text


def test_arguments_of_a_file(folder):
    """Those of the command line count."""
    write(folder / 'rows.jsonl', ROWS)
    (folder / 'a.yaml').write_text(
        'dataset_name: rows.jsonl\nlearning_rate: 1e-6\nnote: other\nmodel_name_or_path: m\n'
        'rewards: [exact, first]\nmodel_init_kwargs: {a: 1}\n',
        encoding='utf-8'
    )
    script = made('parsed', '--config', 'a.yaml', '--note=kept', '--max_completion_length', '99')
    assert script.weights == dict(exact=1.0, first=1.0) and script.model == 'm' and script.max_new_tokens == 99


def test_in_a_process_of_its_own_nothing_of_trl_is_imported(folder):
    """The stand-in is there for as long as rewards are asked, and never the library itself."""
    path = own(
        folder, 'from trl import GRPOTrainer\n'
        'def a(completions, answer, **kwargs):\n'
        '    import trl\n'
        '    assert type(trl).__name__ == "_Module"\n'
        '    return [float(c == b) for c, b in zip(completions, answer)]\n'
        'GRPOTrainer("m", a, train_dataset=[dict(prompt=f"p{i}", answer=str(i)) for i in range(8)])\n'
    )
    code, out = Process(run_program, ['ding_grpo.preflight', '--no-trial', '--trl', path], folder).end()
    assert code == 0 and '8 of 8 are paid' in out, out


def test_what_samples_otherwise_has_no_reward_before_a_run(folder):
    path = own(
        folder, 'from trl import GRPOTrainer\n'
        'GRPOTrainer("m", lambda completions, **_: 1 / 0, train_dataset=[dict(prompt="p"), dict(prompt="q")],\n'
        '            environment_factory=dict)\n'
    )
    text = told('--trl', path)
    assert 'not examined: environment_factory' in text and '2 problems for training' in text and 'right' not in text


@pytest.mark.parametrize(
    'text, line', [
        ('import no_such_package\n', "needs a package that is not installed (ModuleNotFoundError: No module named "),
        ('raise SystemExit(3)\n', 'ended before it made a GRPOTrainer (SystemExit: 3 ('),
        ('from trl import SFTTrainer\nSFTTrainer(model="m").train()\n', 'the script makes no GRPOTrainer.'),
        ('from trl import GRPOTrainer\nGRPOTrainer("m", len)\n', 'gets no train_dataset.'),
        (
            'from trl import GRPOTrainer, GRPOConfig\n'
            'GRPOTrainer("m", len, GRPOConfig(reward_weights=[1, 2]), [dict(prompt="p")])\n',
            '2 reward_weights for 1 reward functions.'
        ),
        (
            'import trl\n'
            'def by_ids(completion_ids, **_): return []\n'
            'trl.GRPOTrainer("m", [by_ids, trl.rewards.get_soft_overlong_punishment(9, 3)],'
            ' train_dataset=[dict(prompt="p")])\n',
            "no reward function can be examined (by_ids, which reads token ids; "
            "get_soft_overlong_punishment, which is TRL's own)."
        ),
    ]
)
def test_a_script_that_cannot_be_examined(folder, text, line):
    assert line in told('--trl', own(folder, text), code=2)


def test_there_is_no_such_script():
    with pytest.raises(ConfigError, match='there is no such file'), trl_script('no.py', []):
        pass
