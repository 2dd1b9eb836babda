"""Updates that are made again from checkpoints are what the run says they were, or the program says from where not."""
import os
import shutil

import pytest

from ding_grpo.bisect.chain import read_chain
from ding_grpo.bisect.find import parting
from ding_grpo.branch.command import main as branch
from ding_grpo.replay.command import main as replay
from ding_grpo.sharing.config_file import config_text
from ding_grpo.sharing.portable import config_of

from .helper import asked, bisect, configs, flip, lines, replaced, rewrite, train, verify

pytestmark = pytest.mark.envtest


def test_the_first_update_and_those_after_checkpoints(run, own_folder):
    status, out = asked(verify, run)
    assert status == 0 and out == (
        'update 0, from the start: as the run says, bit for bit\n'
        'update 2, from iteration_2.pth.tar: as the run says, bit for bit\n'
        '2 of 2 updates are what the run says they were\n'
    )


def test_the_updates_that_are_asked_for_and_the_run_is_left_as_it_is(run, own_folder):
    before = lines(run)
    status, out = asked(verify, run, '--updates', '3,1')
    assert status == 0 and [line.split(':')[0] for line in out.splitlines()[:2]
                            ] == ['update 1, from the start', 'update 3, from iteration_2.pth.tar']
    assert lines(run) == before


@pytest.mark.parametrize(
    'name, changes', [
        ('cartpole_grpo', {}),
        ('guess_grpo', {}),
        ('think_answer_gae', {}),
        ('think_answer_gae', dict(policy=dict(learn=dict(critic=dict(value_warmup=2))))),
        ('think_answer_grpo_serial', {}),
        ('think_answer_grpo', dict(policy=dict(learn=dict(epoch_per_collect=2, batch_groups=1)))),
    ]
)
def test_other_runs(own_folder, name, changes):
    """Steps of gymnasium, several turns, a critic, one that learns alone at first (most weights have no gradient then),
    a replay buffer, several steps."""
    from ding.entry import serial_pipeline
    main, create = configs(name, **changes)
    main.exp_name = 'a'
    if name.endswith('serial'):
        serial_pipeline((main, create), seed=3, max_train_iter=4)
    else:
        train('a', (main, create))
    status, out = asked(verify, 'a', '--updates', '1,2,3')
    assert status == 0 and out.endswith('3 of 3 updates are what the run says they were\n')
    for update, place in ((1, 'the start'), (2, 'iteration_2.pth.tar'), (3, 'iteration_2.pth.tar')):
        assert f'update {update}, from {place}: as the run says, bit for bit\n' in out


def test_a_false_reward_in_the_chain(run, own_folder):
    """A run that claims another reward of one row than it had."""
    found = lines(run)
    found[1]['scored'] = found[2]['scored']
    rewrite('b', found, copied=run)
    status, out = asked(verify, 'b', '--updates', 0)
    assert status == 1 and out.startswith(
        'update 0, from the start: differs from the run (run / again), first in scored: group 0'
    )
    assert out.endswith('0 of 1 updates are what the run says they were\n')


@pytest.mark.parametrize('place', [('model', 'lm.model.norm.weight'), ('optimizer', 'state', 0, 'exp_avg')])
def test_a_flipped_bit_in_the_checkpoint(run, own_folder, place):
    """Also of the optimizer: weights before the update are equal, and the checkpoint's own hashes find it."""
    shutil.copytree(run, 'b')
    flip('b/ckpt/iteration_2.pth.tar', *place)
    status, out = asked(verify, 'b', '--updates', '2')
    name = ' '.join(str(key) for key in place if key != 'state')
    assert status == 1 and f'{name} is not as the run has saved it\n' in out


def test_errors_exit_with_2(run, own_folder):
    assert asked(verify, 'nothing')[0] == 2
    status, out = asked(verify, run, '--updates', '2,9')
    assert status == 2 and '9: the run has the updates 0 to 3' in out


def test_short_lines(own_folder):
    """Updates are made again without the limit, so that a full line, after a checkpoint, is compared row by row."""
    train('a', configs(policy=dict(instruments=dict(digests_limit=0))))
    status, out = asked(verify, 'a', '--updates', '0,1,2,3')
    assert status == 0 and out.count('as the run says, bit for bit\n') == 4
    found = lines('a')
    found[2]['short']['weights']['tensors'] = '0' * 8
    found[3]['scored']['hash'] = found[3]['sampled']['hash']
    rewrite('a', found)
    assert 'first in scored: group 0, row 0, reward: ' in asked(verify, 'a', '--updates', '2')[1]
    out = asked(verify, 'a', '--updates', '1')[1]
    assert out.startswith('update 1, from the start: differs from the run (run / again), first in weights: tensors: ')


def test_a_run_of_ppo(run, own_folder):
    shutil.copytree(run, 'ppo')
    os.remove('ppo/log/learner/digests.jsonl')
    replaced('ppo/total_config.py', "'type': 'grpo'", "'type': 'ppo'")
    digests = "contains no log/learner/digests.jsonl. Runs of grpo write this file, unless policy.instruments." \
              "digests=False; this one has policy.type = 'ppo'."
    assert asked(verify, 'ppo') == asked(bisect, 'ppo', run) == (2, f"Error: RUN = 'ppo': {digests}\n")
    told = (1, "Error: RUN = 'ppo': is a run of policy.type = 'ppo', must be one of grpo.\n")
    assert asked(branch, 'ppo', 'policy.learn.learning_rate=1') == told
    assert asked(replay, 'ppo/ckpt/iteration_2.pth.tar')[1].endswith("'ppo', must be one of grpo.\n")


def test_code_that_a_config_names_runs_only_if_it_is_trusted(run, own_folder):
    shutil.copytree(run, 'b')
    replaced('b/total_config.py', "'import_names': ['ding_grpo']", "'import_names': ['ding_grpo', 'nobody']")
    status, out = asked(verify, 'b')
    assert status == 2 and 'nobody' in out and 'add --trust' in out
    status, out = asked(verify, 'b', '--trust')
    told = "Error: RUN = 'b': a module of its config cannot be imported (ModuleNotFoundError: No module named 'nobody'"
    assert status == 2 and out.startswith(told) and len(out.splitlines()) == 1


@pytest.mark.parametrize('command, words', [(verify, []), (branch, ['policy.learn.learning_rate=1']), (bisect, [])])
def test_code_that_only_the_short_config_names_runs_only_if_it_is_trusted(run, own_folder, command, words):
    """``GRPO`` writes it, and an update is made again by it; the complete one beside it may be harmless."""
    shutil.copytree(run, 'b')
    saved = config_of('b')
    saved.create_config.policy.import_names = ['nobody']
    (own_folder / 'b' / 'config.py').write_text(config_text(saved, 'config.py'), encoding='utf-8')
    (own_folder / 'nobody.py').write_text("open('ran', 'w').close()", encoding='utf-8')
    if command is bisect:  # which makes the update again where the runs part
        rewrite('b', [*lines('b')[:2], dict(lines('b')[2], rate=1.0)])
        words = [run]
    status, out = asked(command, 'b', *words)
    assert status > 0 and "create_config.policy.import_names = 'nobody'" in out and 'add --trust' in out
    assert not (own_folder / 'ran').exists()


def test_chains_of_which_one_is_shorter(run, own_folder):
    """Equal chains part nowhere, and the number of updates counts those of both."""
    shutil.copytree(run, 'b')
    rewrite('b', lines('b')[:3])
    found = parting(read_chain(run), read_chain('b'), 0.)
    assert found.update is None and found.same == 2
