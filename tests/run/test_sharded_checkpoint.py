"""Divided checkpoints as one process writes and reads them; tests/pipelines/test_sharding.py has several."""
import os

import pytest
import torch

from ding_common import CheckpointError
from ding_grpo.run.checkpoint import newest, prune, read_checkpoint, save_checkpoint
from ding_grpo.run.sharded_checkpoint import write_shards

BEST = 'ckpt_best.pth.tar'


def state(number):
    weight = torch.full((3, 2), float(number))
    moments = {0: dict(step=torch.tensor(2.), exp_avg=weight + 1)}
    return dict(model={'a.weight': weight}, optimizer=dict(state=moments, param_groups=[dict(lr=0.1)]), updates=number)


def save(folder, number, name=None):
    path = str(folder / (name or f'iteration_{number}.pth.tar'))
    save_checkpoint(path, write_shards(path, state(number)))
    return path


def total(found):
    return found['model']['a.weight'].sum()


def test_what_is_written_is_read(tmp_path):
    path = save(tmp_path, 5)
    found, written = read_checkpoint(path), state(5)
    moments, own = (s['optimizer'].pop('state')[0] for s in (found, written))
    assert torch.equal(found.pop('model')['a.weight'], written.pop('model')['a.weight'])
    assert torch.equal(moments['exp_avg'], own['exp_avg']) and moments['step'] == 2
    assert found['optimizer'] == written['optimizer'] and found['updates'] == 5
    of_file = torch.load(path, weights_only=True)  # has no tensors of its own
    assert 'model' not in of_file and of_file['optimizer']['state'] == {}
    of_export = read_checkpoint(path, mapped=True)  # reads the model alone
    assert total(of_export) == 30 and of_export['optimizer']['state'] == {}


@pytest.mark.parametrize('damage', ['byte', 'short', 'absent'])
def test_a_damaged_part_falls_back_to_the_checkpoint_before(tmp_path, damage, capsys):
    save(tmp_path, 3), save(tmp_path, 5)
    part, = (tmp_path / 'iteration_5.0.shards').iterdir()
    content = part.read_bytes()
    if damage == 'absent':
        part.unlink()
    else:
        part.write_bytes(content[:-9] + (bytes([content[-9] ^ 1]) + content[-8:] if damage == 'byte' else b''))
    found = newest(str(tmp_path))
    assert found.path.endswith('iteration_3.pth.tar') and total(found.state) == 18
    assert 'iteration_5.pth.tar is damaged' in capsys.readouterr().out


def test_a_file_that_replaces_another_keeps_the_old_folder_until_then(tmp_path):
    """Overwriting the folder of ``ckpt_best`` would destroy the only one if the process were killed meanwhile."""
    path = save(tmp_path, 3, BEST)
    write_shards(path, state(5))  # killed before the file is written
    assert total(read_checkpoint(path)) == 18
    save(tmp_path, 7, BEST)
    prune(str(tmp_path), 3)
    assert sorted(os.listdir(tmp_path)) == ['ckpt_best.2.shards', BEST] and total(read_checkpoint(path)) == 42


def test_folders_go_with_their_files(tmp_path):
    for number in range(1, 5):
        save(tmp_path, number)
    os.replace(tmp_path / 'iteration_4.pth.tar', tmp_path / 'iteration_4.pth.tar.left')  # by a resumed run
    save(tmp_path, 4)
    prune(str(tmp_path), 2)
    assert sorted(os.listdir(tmp_path)) == [
        'iteration_3.0.shards', 'iteration_3.pth.tar', 'iteration_4.0.shards', 'iteration_4.1.shards',
        'iteration_4.pth.tar', 'iteration_4.pth.tar.left'
    ]


def test_a_name_outside_of_the_folder(tmp_path):
    """The name is from a file: it must not lead elsewhere."""
    path = save(tmp_path, 5)
    content = torch.load(path, weights_only=True)
    content['shards']['folder'] = '../elsewhere/iteration_5.0.shards'
    save_checkpoint(path, content)
    assert read_checkpoint(path)['updates'] == 5  # read beside the file


def test_a_full_disk(tmp_path, monkeypatch):
    path = save(tmp_path, 3)
    monkeypatch.setattr(
        'ding_grpo.run.sharded_checkpoint.dcp.save', lambda *_, **__: (_ for _ in ()).throw(OSError(28, 'full'))
    )
    with pytest.raises(CheckpointError, match=r'iteration_5.pth.tar could not be written \(.*full'):
        save(tmp_path, 5)
    assert newest(str(tmp_path)).path == path
