"""Runs that go on from a checkpoint with several settings."""
import json
import os
import shutil
import signal

import pytest
from click.testing import CliRunner
from ding.entry import serial_pipeline

from ding_common import read_json_lines
from ding_grpo.branch.command import main
from ding_grpo.branch.group_record import read_groups
from ding_grpo.verify import main as verify
from tests.run.configs import buffer, steps, tokens
from tests.runs import each_update, metrics, state, train
from tests.same import same

pytestmark = pytest.mark.envtest
RATE = 'policy.learn.learning_rate'


def make(name, configs, updates=6, **kwargs):
    main_config, create = configs
    main_config.policy.learn.learner = dict(hook=dict(save_ckpt_after_iter=2))
    main_config.policy.run = dict(keep_ckpt=9)
    main_config.env.stop_value = 1e3
    train((main_config, create), updates, 3, name, **kwargs)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make('run', tokens())
    return folder


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """A run of six updates with a checkpoint after each second."""
    shutil.copytree(made / 'run', tmp_path / 'run')
    monkeypatch.chdir(tmp_path)
    return 'run'


def branch(*words, code=0):
    done = CliRunner().invoke(main, [*words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def table(text):
    """The cells of each branch by the head of their column."""
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line[:2] == '| ']
    return {row[0]: dict(zip(rows[0], row)) for row in rows[2:]}


def bits(name):
    """All numbers of the updates of a run that no clock measures."""
    return [{k: v for k, v in m.items() if not any(w in k for w in ('second', 'memory'))} for m in metrics(name)]


def test_the_runs_own_setting_is_the_run_that_goes_on_and_equal_settings_differ_by_0(run):
    shown = branch('run', '--at', '3', f'{RATE}=1e-3,5e-2', '--own', '--updates', '4')
    assert '--at 3: the branches begin at update 2; the run has checkpoints of 2, 4, 6\n' in shown
    own, equal, other = (f'run/branches/2/{name}' for name in ('own', 'learning_rate=1e-3', 'learning_rate=5e-2'))
    for name in (own, equal):
        assert bits(name) == bits('run')[2:]
        same(state(6, name)['model'], state(6)['model'])
        same(state(6, name)['optimizer'], state(6)['optimizer'])
        same(state(6, name)['run']['random'], state(6)['run']['random'])
    first, second, third = (read_groups(name, 2, 6) for name in (own, equal, other))
    assert first == second and list(first) == [(update, group) for update in range(2, 6) for group in range(2)]
    assert [m['reward_mean'] for m in metrics(own)
            ] == pytest.approx([(first[u, 0].reward + first[u, 1].reward) / 2 for u in range(2, 6)])
    # the first update samples by the weights of the checkpoint; all have the same problems
    assert [first[key] == third[key] for key in first][:3] == [True, True, False]
    assert [group.problem for group in first.values()] == [group.problem for group in third.values()]
    lines = table(shown)
    assert list(lines) == ['own', 'learning_rate=1e-3', 'learning_rate=5e-2']
    zero = lines['learning_rate=1e-3']
    assert (zero['difference'], zero['95 % interval'], zero['pairs']) == ('0', '0 to 0', '6')
    assert (zero['half of the rows differ after'], zero['pairing saves']) == ('never', 'all')
    far = lines['learning_rate=5e-2']
    assert far['half of the rows differ after'] == '1 update'
    for name in ('md', 'csv', 'png'):
        assert os.path.getsize(f'run/branches/2/branches.{name}') > 100


def test_updates_of_a_branch_are_made_again(run):
    branch('run', '--at', '4', f'{RATE}=5e-2', '--updates', '2')
    for name in ('own', 'learning_rate=5e-2'):
        done = CliRunner().invoke(verify, [f'run/branches/4/{name}'])
        assert 'update 4, from iteration_4.pth.tar: as the run says, bit for bit' in done.output
        assert done.exit_code == 0


def test_a_planted_difference_is_found(run):
    """Three times the weights of the rewards: groups that the checkpoint samples are the same, and pay three times."""
    weights = "env.reward_weights={'answer': 3.0, 'format': 1.5, 'solved': 1.5}"
    shown = branch('run', '--at', '2', weights, '--updates', '2')
    name = weights.partition('.')[2]
    own, other = (read_groups(f'run/branches/2/{each}', 2, 3) for each in ('own', name))
    assert [group.rows for group in own.values()] == [group.rows for group in other.values()] and len(own) == 2
    rewards = [group.reward for group in own.values()]
    assert [group.reward for group in other.values()] == pytest.approx([3 * reward for reward in rewards])
    assert max(rewards) > 0 and float(table(shown)[name]['difference']) > 0


def test_interrupted_and_given_again(run, monkeypatch):
    """Ctrl-C in the second branch, at the third of its four updates. A finished branch is not run again."""
    words = ('run', '--at', '2', f'{RATE}=1e-3,2e-3', '--updates', '4')
    with monkeypatch.context() as patch:
        each_update(patch, after=lambda number, *_: number == 4 + 2 and os.kill(os.getpid(), signal.SIGINT))
        shown = branch(*words, code=130)
    assert shown.endswith('stopped; the same command goes on with learning_rate=2e-3\n')
    first, second = (f'run/branches/2/learning_rate={rate}' for rate in ('1e-3', '2e-3'))
    assert [m['train_iter'] for m in metrics(second)] == [2, 3, 4]
    before = {name: os.stat(f'{first}/{name}').st_mtime_ns for name in ('result.pkl', 'total_config.py')}
    shown = branch(*words)
    assert '1 of 2 branches are already done\n' in shown and 'branch 1 of 2' not in shown
    assert before == {name: os.stat(f'{first}/{name}').st_mtime_ns for name in before}
    whole = branch(*words, '--out', 'whole')
    same(state(6, second)['model'], state(6, 'whole/learning_rate=2e-3')['model'])
    assert table(shown) == table(whole)
    again = branch(*words)
    assert 'branch ' not in again.replace('branches', '') and table(again) == table(whole)


def test_more_updates_continue_the_branches(run):
    words = ('run', '--at', '2', f'{RATE}=1e-3,2e-3', '--updates')
    branch(*words, '2')
    shown = branch(*words, '4')
    assert 'after update 4' in shown and [m['train_iter']
                                          for m in metrics('run/branches/2/learning_rate=1e-3')] == [2, 3, 4, 5]
    assert table(shown) == table(branch(*words, '4', '--out', 'whole'))


def test_a_branch_that_was_killed_before_its_first_checkpoint_begins_again(run):
    words = ('run', '--at', '2', f'{RATE}=1e-3', '--updates', '1')
    branch(*words)
    folder = 'run/branches/2/learning_rate=1e-3'
    shutil.rmtree(f'{folder}/ckpt')
    os.remove(f'{folder}/result.pkl')
    branch(*words)
    assert len(metrics(folder)) == 1 and len(read_json_lines(f'{folder}/log/collector/groups.jsonl')) == 2
    with open(f'{folder}/branch.json') as f:
        known = json.load(f)
    with open(f'{folder}/branch.json', 'w') as f:
        json.dump(dict(known, settings=[]), f)
    assert 'is not of this branch, but of another checkpoint' in branch(*words, code=1)


def test_lines_that_are_written_twice_count_once(tmp_path):
    path = tmp_path / 'log/collector/groups.jsonl'
    path.parent.mkdir(parents=True)
    record = dict(collect_iter=3, group=0, problem=-1, reward=1.0, rows=[5])
    path.write_text(''.join(json.dumps(dict(record, collect_iter=i)) + '\n' for i in (2, 3, 3, 4)))
    assert read_groups(str(tmp_path), 3, 4) == {(3, 0): (-1, 1.0, [5])}


def test_a_replay_buffer(own_folder):
    make('run', buffer(), pipeline=serial_pipeline)
    shown = branch('run', '--at', '2', f'{RATE}=1e-3,1e-2', '--own', '--updates', '4')
    assert bits('run/branches/2/own') == bits('run')[2:]
    first, second = (read_groups(f'run/branches/2/{name}', 2, 6) for name in ('own', 'learning_rate=1e-3'))
    assert first == second and len(first) == 4
    assert table(shown)['learning_rate=1e-2']['pairs'] == '2'  # without those that the checkpoint samples


def test_an_environment_of_steps_and_two_keys(own_folder):
    make('run', steps())
    shown = branch('run', '--at', '4', f'{RATE}=1e-3,1e-2', 'policy.learn.clip.ratio=0.1,0.2', '--updates', '2')
    names = [f'learning_rate={rate} ratio={clip}' for rate in ('1e-3', '1e-2') for clip in ('0.1', '0.2')]
    assert list(table(shown)) == names and table(shown)[names[1]]['pairs'] == '2'


LOADED = 'cannot be changed in a branch, which goes on with weights, optimizer and counters of its checkpoint: '


@pytest.mark.parametrize(
    'setting, told', [
        (
            'policy.learn.learning_rat=1e-5',
            "policy.learn.learning_rat = 1e-05: unknown key; did you mean 'learning_rate'?"
        ),
        ('policy.learn.learning_rate=fast', "policy.learn.learning_rate = 'fast': must be "),
        ('policy.learn.learning_rate=-1', 'policy.learn.learning_rate = -1: must be '),
        ('policy.learn.learning_rate', 'policy.learn.learning_rate: must be KEY=VALUE'),
        ('learn.learning_rate=1', 'learn.learning_rate=1: must begin with policy, env'),
        ('policy.learn.learning_rate=1e-3,1e-3', 'learning_rate=1e-3: the value is given twice.'),
        ('env.system_prompt=a/b,a_b', 'system_prompt=a/b: the value is given twice.'),
        ('env.stop_value=3', 'env.stop_value=3: cannot be changed in a branch, because branches are compared'),
        ('create_config.policy.type=ppo', 'create_config.policy.type=ppo: cannot be changed in a branch, which'),
        ('policy.model.config.hidden_size=64', f'policy.model.config.hidden_size=64: {LOADED}policy.model = '),
        (
            "policy.learn.optimizer={'type': 'SGD'}",
            f"policy.learn.optimizer={{'type': 'SGD'}}: {LOADED}policy.learn.opt"
        ),
    ]
)
def test_a_wrong_setting_ends_in_one_line_before_anything_is_written(run, setting, told):
    shown = branch('run', '--at', '2', setting, code=1)
    assert shown.startswith('Error: ') and told in shown and len(shown.splitlines()
                                                                 ) == 1 and not os.path.exists('run/branches')


def test_checkpoints_that_do_not_exist_and_code_of_others(run):
    assert '--at 1: the run has no checkpoint of at most 1 updates, only of 2, 4, 6.' in branch(
        'run', '--at', '1', f'{RATE}=1', code=1
    )
    assert 'given twice. Give its values in one word' in branch('run', f'{RATE}=1', f'{RATE}=2', code=1)
    with open('run/total_config.py') as f:
        text = f.read()
    with open('run/total_config.py', 'w') as f:
        f.write(text.replace("'surrogate': None", "'surrogate': 'my_losses:mine'"))
    assert 'add --trust' in branch('run', f'{RATE}=1', code=1)
    shutil.rmtree('run/ckpt')
    assert 'has no checkpoint of a number of updates' in branch('run', f'{RATE}=1', code=1)
