"""Divided checkpoints as one process writes and reads them; tests/pipelines/test_sharding.py has several."""
import os

import pytest
import torch

from ding_common import CheckpointError
from ding_grpo.run.checkpoint import newest, prune, read_checkpoint, save_checkpoint
from ding_grpo.run.sharded_checkpoint import write_shards


def state(number):
    weight = torch.full((3, 2), float(number))
    moments = {0: dict(step=torch.tensor(2.), exp_avg=weight + 1)}
    return dict(model={'a.weight': weight}, optimizer=dict(state=moments, param_groups=[dict(lr=0.1)]), updates=number)


def save(folder, number, name=None):
    path = str(folder / (name or f'iteration_{number}.pth.tar'))
    save_checkpoint(path, write_shards(path, state(number)))
    return path


def files(folder):
    return sorted(os.listdir(folder))


@pytest.mark.unittest
class TestShards:

    def test_what_is_written_is_read(self, tmp_path):
        found = read_checkpoint(save(tmp_path, 5))
        assert torch.equal(found['model']['a.weight'], torch.full((3, 2), 5.))
        assert torch.equal(found['optimizer']['state'][0]['exp_avg'], torch.full((3, 2), 6.))
        assert found['optimizer']['state'][0]['step'] == 2 and found['optimizer']['param_groups'] == [dict(lr=0.1)]
        assert found['updates'] == 5

    def test_the_file_has_no_tensors_of_its_own(self, tmp_path):
        found = torch.load(save(tmp_path, 5), weights_only=True)
        assert 'model' not in found and found['optimizer']['state'] == {}

    def test_an_export_reads_the_model_alone(self, tmp_path):
        found = read_checkpoint(save(tmp_path, 5), mapped=True)
        assert found['model']['a.weight'].sum() == 30 and found['optimizer']['state'] == {}

    @pytest.mark.parametrize('damage', ['byte', 'short', 'absent'])
    def test_a_damaged_part_falls_back_to_the_checkpoint_before(self, tmp_path, damage, capsys):
        save(tmp_path, 3), save(tmp_path, 5)
        part, = (tmp_path / 'iteration_5.0.shards').iterdir()
        content = part.read_bytes()
        if damage == 'absent':
            part.unlink()
        else:
            part.write_bytes(content[:-9] + (bytes([content[-9] ^ 1]) + content[-8:] if damage == 'byte' else b''))
        found = newest(str(tmp_path))
        assert found.path.endswith('iteration_3.pth.tar') and found.state['model']['a.weight'].sum() == 18
        assert 'iteration_5.pth.tar is damaged' in capsys.readouterr().out

    def test_a_file_that_replaces_another_keeps_the_old_folder_until_then(self, tmp_path):
        """Overwriting the folder of ``ckpt_best`` would destroy the only one if the process were killed meanwhile."""
        name = 'ckpt_best.pth.tar'
        save(tmp_path, 3, name)
        write_shards(str(tmp_path / name), state(5))  # killed before the file is written
        assert read_checkpoint(str(tmp_path / name))['model']['a.weight'].sum() == 18
        save(tmp_path, 7, name)
        prune(str(tmp_path), 3)
        assert files(tmp_path) == ['ckpt_best.2.shards', name]
        assert read_checkpoint(str(tmp_path / name))['model']['a.weight'].sum() == 42

    def test_folders_go_with_their_files(self, tmp_path):
        for number in range(1, 5):
            save(tmp_path, number)
        os.replace(tmp_path / 'iteration_4.pth.tar', tmp_path / 'iteration_4.pth.tar.left')  # by a resumed run
        save(tmp_path, 4)
        prune(str(tmp_path), 2)
        assert files(tmp_path) == [
            'iteration_3.0.shards', 'iteration_3.pth.tar', 'iteration_4.0.shards', 'iteration_4.1.shards',
            'iteration_4.pth.tar', 'iteration_4.pth.tar.left'
        ]

    def test_a_name_outside_of_the_folder(self, tmp_path):
        """The name is from a file: it must not lead elsewhere."""
        path = save(tmp_path, 5)
        content = torch.load(path, weights_only=True)
        content['shards']['folder'] = '../elsewhere/iteration_5.0.shards'
        save_checkpoint(path, content)
        assert read_checkpoint(path)['updates'] == 5  # read beside the file

    def test_a_full_disk(self, tmp_path, monkeypatch):
        path = save(tmp_path, 3)
        monkeypatch.setattr(
            'ding_grpo.run.sharded_checkpoint.dcp.save', lambda *_, **__: (_ for _ in ()).throw(OSError(28, 'full'))
        )
        with pytest.raises(CheckpointError, match=r'iteration_5.pth.tar could not be written \(.*full'):
            save(tmp_path, 5)
        assert newest(str(tmp_path)).path == path
