import errno
import os
import zipfile
from contextlib import nullcontext

import ding.worker.learner.learner_hook
import pytest
import torch

from ding_common import CheckpointError
from ding_grpo.run import around, checkpoint
from ding_grpo.run.checkpoint import newest, numbered, prune, read_checkpoint, save_checkpoint, whole_folder


@pytest.fixture
def ckpt(tmp_path):
    """A folder with the checkpoints of updates 2 and 10, and the best."""
    for name in ('iteration_2', 'iteration_10', 'ckpt_best'):
        save_checkpoint(str(tmp_path / f'{name}.pth.tar'), dict(name=name, x=torch.arange(100.)))
    return tmp_path


@pytest.mark.unittest
class TestSave:

    def test_every_policy_of_di_engine_saves_and_loads_so(self, tmp_path):
        hook, path = ding.worker.learner.learner_hook, str(tmp_path / 'ckpt' / 'a.pth.tar')
        with around.around_run():
            hook.save_file(path, dict(x=1))  # makes the folder, as DI-engine's own does not
            assert hook.read_file(path) == dict(x=1)
            os.truncate(path, 50)
            with pytest.raises(CheckpointError, match='damaged'):
                hook.read_file(path)

    def test_another_store_is_di_engines(self, monkeypatch):
        told = []
        monkeypatch.setattr(around, 'save_file', lambda path, data: told.append(path))
        monkeypatch.setattr(around, 'read_file', lambda path: dict(x=path))
        hook = ding.worker.learner.learner_hook
        with around.around_run():
            hook.save_file('s3://a', {})
            assert told == ['s3://a'] and hook.read_file('s3://b') == dict(x='s3://b')

    @pytest.mark.parametrize('step', ['save', 'fsync', 'replace'])
    def test_what_fails_leaves_the_one_before(self, ckpt, monkeypatch, step):
        path = str(ckpt / 'iteration_10.pth.tar')
        before = open(path, 'rb').read()

        def fail(*args):
            raise OSError(errno.ENOSPC, 'No space left on device')

        monkeypatch.setattr(*dict(save=(torch, 'save'), fsync=(os, 'fsync'), replace=(os, 'replace'))[step], fail)
        with pytest.raises(CheckpointError,
                           match=r'could not be written \(No space left on device\); the last good one'):
            save_checkpoint(path, dict(x=1))
        assert open(path, 'rb').read() == before and not list(ckpt.glob('*.tmp'))

    def test_a_kill_while_writing_leaves_the_one_before(self, ckpt, monkeypatch):
        path = str(ckpt / 'iteration_10.pth.tar')

        def killed(state, f):
            f.write(b'half')
            os._exit(9)

        monkeypatch.setattr(torch, 'save', killed)
        child = os.fork()
        if child == 0:
            save_checkpoint(path, dict(x=1))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert read_checkpoint(path)['name'] == 'iteration_10' and list(ckpt.glob('*.tmp'))
        prune(str(ckpt), 5)
        assert not list(ckpt.glob('*.tmp'))

    def test_a_folder_takes_its_place_when_it_is_whole(self, tmp_path):
        place = tmp_path / 'model'
        for text in ('a', 'b'):
            with whole_folder(str(place)) as folder:
                os.mkdir(folder)
                with open(os.path.join(folder, 'file'), 'w') as f:
                    f.write(text)
        with pytest.raises(KeyError):
            with whole_folder(str(place)) as folder:
                os.mkdir(folder)
                raise KeyError('killed')
        assert (place / 'file').read_text() == 'b'


def resident():
    """Bytes of this process that are in memory."""
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * os.sysconf('SC_PAGESIZE')


@pytest.mark.unittest
class TestFind:

    def test_newest_by_number(self, ckpt):
        assert [os.path.basename(path)
                for path in numbered(str(ckpt))] == ['iteration_10.pth.tar', 'iteration_2.pth.tar']
        assert newest(str(ckpt)).state['name'] == 'iteration_10'

    def test_the_one_that_is_asked_for_else_an_older_one(self, ckpt, capsys):
        asked = str(ckpt / 'iteration_2.pth.tar')
        assert newest('elsewhere', asked).state['name'] == 'iteration_2'
        os.truncate(asked, 50)
        with pytest.raises(CheckpointError, match='iteration_2.pth.tar is damaged.*no good earlier checkpoint'):
            newest('elsewhere', asked)  # not the newer one

    def test_the_best_where_there_is_no_other(self, ckpt):
        for path in numbered(str(ckpt)):
            os.remove(path)
        assert newest(str(ckpt)).state['name'] == 'ckpt_best'
        assert newest(str(ckpt / 'empty')) is None

    def test_a_folder_whose_name_reads_like_a_pattern(self, tmp_path):
        for name in ('run1', 'run[1]'):
            save_checkpoint(str(tmp_path / name / 'iteration_1.pth.tar'), dict(name=name))
        prune(str(tmp_path / 'run[1]'), 0)
        assert numbered(str(tmp_path / 'run1')) and not numbered(str(tmp_path / 'run[1]'))

    def test_pruned_to_the_newest(self, ckpt):
        prune(str(ckpt), 1)
        assert sorted(os.listdir(ckpt)) == ['ckpt_best.pth.tar', 'iteration_10.pth.tar']

    @pytest.mark.parametrize('mapped', [False, True])
    def test_any_flipped_byte_of_the_data_is_found(self, ckpt, mapped):
        path = ckpt / 'iteration_2.pth.tar'
        data = bytearray(path.read_bytes())
        place = data.index(torch.arange(100.).numpy().tobytes())
        for offset in (0, 57, 399):
            spoilt = bytearray(data)
            spoilt[place + offset] ^= 1
            path.write_bytes(spoilt)
            with pytest.raises(CheckpointError, match='checksum'):
                checkpoint.read_checkpoint(str(path), mapped)

    @pytest.mark.parametrize('sizes, unread', [((400, ), 0), ((1, 150, 249), 0), ((150, ), 1)])
    @pytest.mark.parametrize('damaged', [False, True])
    def test_checksum_of_a_record_that_is_read_in_parts(self, ckpt, sizes, unread, damaged):
        with open(ckpt / 'iteration_2.pth.tar', 'rb') as file, zipfile.ZipFile(file) as archive:
            record, = (r for r in archive.infolist() if r.filename.endswith('/data/0'))
            record.CRC ^= damaged
            summed = checkpoint._SummedFile(file, [record])
            summed.seek(summed._start(record))
            assert [summed.readinto(bytearray(size)) for size in sizes] == list(sizes)
            assert len(summed.unread()) == unread
            with pytest.raises(zipfile.BadZipFile, match='data/0') if damaged and not unread else nullcontext():
                summed.check()

    def test_a_file_is_read_once(self, tmp_path):
        path = str(tmp_path / 'iteration_1.pth.tar')
        state = dict(model=dict(a=torch.randn(1000, 1000), b=torch.arange(10 ** 6)), step=torch.tensor(3.), name='x')
        save_checkpoint(path, state)
        before = bytes_read()
        assert read_checkpoint(path)['model']['b'][-1] == 10 ** 6 - 1
        assert os.path.getsize(path) <= bytes_read() - before < 1.05 * os.path.getsize(path)

    def test_mapped_tensors_need_no_memory_until_they_are_used(self, tmp_path):
        path, size = str(tmp_path / 'iteration_1.pth.tar'), 8 * 2 ** 20  # numbers
        save_checkpoint(path, dict(model=torch.ones(10), optimizer=torch.arange(float(size))))
        before = resident()
        state = read_checkpoint(path, mapped=True)
        assert resident() - before < size  # bytes; the optimizer's are four times as many
        assert state['model'].sum() == 10 and state['optimizer'][-1] == size - 1


def bytes_read():
    """By this process, from files, a page cache or a disk."""
    with open('/proc/self/io') as f:
        return int(f.readline().removeprefix('rchar: '))
