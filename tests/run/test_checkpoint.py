import errno
import os

import pytest
import torch
from ding.worker.learner import learner_hook

from ding_common import CheckpointError
from ding_common.processes.memory import MEBI, resident_memory
from ding_grpo.run import around
from ding_grpo.run.checkpoint import newest, numbered, prune, read_checkpoint, save_checkpoint, whole_folder

NUMBERS = torch.arange(2. ** 20)  # 4 MiB


@pytest.fixture
def ckpt(tmp_path):
    """A folder with the checkpoints of updates 2 and 10, and the best."""
    for name in ('iteration_2', 'iteration_10', 'ckpt_best'):
        save_checkpoint(str(tmp_path / f'{name}.pth.tar'), dict(name=name, x=NUMBERS))
    return tmp_path


class TestSave:

    def test_every_policy_of_di_engine_saves_and_loads_so(self, tmp_path):
        path = str(tmp_path / 'ckpt' / 'a.pth.tar')
        with around.around_run():
            learner_hook.save_file(path, dict(x=1))  # makes the folder, as DI-engine's own does not
            assert learner_hook.read_file(path) == dict(x=1)
            os.truncate(path, 50)
            with pytest.raises(CheckpointError, match='damaged'):
                learner_hook.read_file(path)

    def test_another_store_is_di_engines(self, monkeypatch):
        told = {}
        monkeypatch.setattr(around, 'save_file', told.__setitem__)
        monkeypatch.setattr(around, 'read_file', told.__getitem__)
        with around.around_run():
            learner_hook.save_file('s3://a', dict(x=1))
            assert learner_hook.read_file('s3://a') == dict(x=1)

    @pytest.mark.parametrize('module, name', [(torch, 'save'), (os, 'fsync'), (os, 'replace')], ids=str)
    def test_what_fails_leaves_the_one_before(self, ckpt, monkeypatch, module, name):
        path = str(ckpt / 'iteration_10.pth.tar')

        def fail(*args):
            raise OSError(errno.ENOSPC, 'No space left on device')

        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(CheckpointError, match=r'not be written \(No space left on device\); the last good one'):
                save_checkpoint(path, dict(x=1))
        assert read_checkpoint(path)['name'] == 'iteration_10' and not list(ckpt.glob('*.tmp'))

    def test_a_kill_while_writing_leaves_the_one_before(self, ckpt):

        class Kills:

            def __reduce__(self):
                os._exit(9)

        path = str(ckpt / 'iteration_10.pth.tar')
        child = os.fork()
        if child == 0:
            save_checkpoint(path, dict(x=Kills()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert read_checkpoint(path)['name'] == 'iteration_10' and list(ckpt.glob('*.tmp'))
        prune(str(ckpt), 5)
        assert not list(ckpt.glob('*.tmp'))

    def test_a_folder_takes_its_place_when_it_is_whole(self, tmp_path):
        place = tmp_path / 'model'
        for text in ('a', 'b', 'killed'):
            try:
                with whole_folder(str(place)) as folder:
                    os.mkdir(folder)
                    with open(os.path.join(folder, 'file'), 'w') as f:
                        f.write(text)
                    assert text != 'killed'
            except AssertionError:
                pass
        assert (place / 'file').read_text() == 'b'


class TestFind:

    def test_newest_by_number_else_the_best(self, ckpt):
        paths = numbered(str(ckpt))
        assert [os.path.basename(path) for path in paths] == ['iteration_10.pth.tar', 'iteration_2.pth.tar']
        assert newest(str(ckpt)).state['name'] == 'iteration_10'
        for path in paths:
            os.remove(path)
        assert newest(str(ckpt)).state['name'] == 'ckpt_best' and newest(str(ckpt / 'empty')) is None

    def test_the_one_that_is_asked_for_else_an_older_one(self, ckpt):
        asked = str(ckpt / 'iteration_2.pth.tar')
        assert newest('elsewhere', asked).state['name'] == 'iteration_2'
        os.truncate(asked, 50)
        with pytest.raises(CheckpointError, match='iteration_2.pth.tar is damaged.*no good earlier checkpoint'):
            newest('elsewhere', asked)  # not the newer one

    def test_a_folder_whose_name_reads_like_a_pattern(self, tmp_path):
        for name in ('run1', 'run[1]'):
            save_checkpoint(str(tmp_path / name / 'iteration_1.pth.tar'), dict(name=name))
        prune(str(tmp_path / 'run[1]'), 0)
        assert numbered(str(tmp_path / 'run1')) and not numbered(str(tmp_path / 'run[1]'))

    def test_pruned_to_the_newest(self, ckpt):
        prune(str(ckpt), 1)
        assert sorted(os.listdir(ckpt)) == ['ckpt_best.pth.tar', 'iteration_10.pth.tar']


class TestRead:

    @pytest.mark.parametrize('mapped, byte', [(False, 0), (False, 2 ** 22 - 1), (True, 57), (True, 2 ** 21)])
    def test_any_flipped_byte_of_the_data_is_found(self, ckpt, mapped, byte):
        path = ckpt / 'iteration_2.pth.tar'
        spoilt = bytearray(path.read_bytes())
        spoilt[spoilt.index(NUMBERS[:100].numpy().tobytes()) + byte] ^= 1
        path.write_bytes(spoilt)
        with pytest.raises(CheckpointError, match='checksum'):
            read_checkpoint(str(path), mapped)

    def test_mapped_tensors_need_no_memory_until_they_are_used(self, tmp_path):
        path, size = str(tmp_path / 'iteration_1.pth.tar'), 8 * 2 ** 20  # numbers
        save_checkpoint(path, dict(model=torch.ones(10), optimizer=torch.arange(float(size))))
        before = resident_memory()
        state = read_checkpoint(path, mapped=True)
        # fewer bytes than numbers; the optimizer's are four times as many
        assert (resident_memory() - before) * MEBI < size
        assert state['model'].sum() == 10 and state['optimizer'][-1] == size - 1
