"""A run whose checkpoints are damaged resumes from the newest whole one, to the same bits."""
import os

import pytest
import torch

from ding_common import CheckpointError, NumericError
from tests.run.configs import tokens
from tests.run.test_resume import board, load, logs
from tests.runs import each_update, metrics, state, train
from tests.same import same

LAST, BEST = 'run/ckpt/iteration_6.pth.tar', 'run/ckpt/ckpt_best.pth.tar'


def flip(path):
    """One bit in the middle."""
    with open(path, 'r+b') as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 16]))


class Code:

    def __reduce__(self):
        return os.mkdir, ('executed', )


@pytest.mark.envtest
class TestDamage:

    @pytest.mark.parametrize(
        'damage, told', [
            (lambda: [os.remove(path) for path in (LAST, BEST)], ''),
            (lambda: os.truncate(LAST, 10 ** 4), 'is damaged, or was not written by torch 1.6 or later'),
            (lambda: flip(LAST), 'is damaged, or was not written by torch 1.6 or later (the checksum'),
        ],
        ids=['absent', 'half', 'one bit']
    )
    def test_of_the_last_one_goes_on_from_the_one_before(self, stopped, finished, capfd, damage, told):
        damage()
        train(stopped, 6, 3)
        same(state(6, finished), state(6))
        assert logs(finished) == logs('run')
        assert board(finished) == board('run') and sorted(board('run')['learner_iter/entropy']) == list(range(6))
        said = capfd.readouterr().out
        assert not told or f'iteration_6.pth.tar {told}' in said
        assert 'resuming from run/ckpt/iteration_4.pth.tar, after update 4' in said

    @pytest.mark.parametrize(
        'damage, message', [
            (lambda path: os.truncate(path, 100), 'damaged.*no good earlier checkpoint'),
            (lambda path: torch.save(dict(model=Code()), path), 'no good earlier checkpoint'),
        ],
        ids=['cut', 'code']
    )
    def test_of_all_ends_in_one_line(self, stopped, damage, message):
        for name in os.listdir('run/ckpt'):
            damage(f'run/ckpt/{name}')
        with pytest.raises(CheckpointError, match=message):
            train(stopped, 7, 3)
        assert not os.path.exists('executed')

    @pytest.mark.curves
    def test_of_the_best_one_costs_its_model_alone(self, stopped, capfd):
        os.truncate(BEST, 100)
        train(stopped, 6, 3)
        assert 'ckpt_best.pth.tar is damaged' in capfd.readouterr().out
        assert os.path.exists('run/model/last/model.safetensors') and os.path.exists('run/curve.png')
        load(stopped, BEST)
        with pytest.raises(CheckpointError, match='no good earlier checkpoint'):  # not one of another update
            train(stopped, 6, 3, 'other')


@pytest.mark.envtest
def test_weights_that_are_not_finite_are_not_saved(own_folder, monkeypatch):
    config = tokens(dict(learner=dict(hook=dict(save_ckpt_after_iter=1))))

    def break_down(number, policy, _):
        if number == 2:
            with torch.no_grad():
                next(policy.whole_model.parameters()).fill_(float('nan'))

    with monkeypatch.context() as patch:
        each_update(patch, after=break_down)
        with pytest.raises(NumericError, match='after update 3: weights are NaN or infinite'):
            train(config, 6)
    assert 'iteration_3.pth.tar' not in os.listdir('run/ckpt')
    train(config, 4, resume_training=True)
    assert [r['train_iter'] for r in metrics()] == [0, 1, 2, 3]
