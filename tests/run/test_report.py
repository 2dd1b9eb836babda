"""What hooks print and write after each update."""
import pty
import re
from contextlib import redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest
from ding.worker import BaseLearner
from ding.worker.learner.learner_hook import build_learner_hook_by_cfg
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.policy import GRPOPolicy
from ding_grpo.run.parts import Limits
from ding_grpo.run.report import MetricsHook, ReportHook, UpdateLog
from tests.runs import metrics

METRICS = dict(
    reward_mean=1.25,
    reward_answer_mean=0.5,
    completion_length_mean=6.,
    entropy=1.,
    clipfrac=0.,
    tokens_per_second=9.,
    train_time=3.
)


def engine(update, envstep=7, **more):
    """What the hooks read of a learner."""
    writer = SimpleNamespace(add_scalar=lambda *args: None)
    return SimpleNamespace(
        exp_name='run',
        instance_name='learner',
        last_iter=SimpleNamespace(val=update),
        collector_envstep=envstep,
        log_buffer=dict(scalar=dict(METRICS)),
        tb_logger=writer,
        **more
    )


@pytest.fixture
def progress(own_folder, monkeypatch, capsys):
    """What updates of some seconds and environment steps each print."""

    def shown(made, seconds=4., envstep=100, terminal=True, freq=3, **limits):
        now = [0.]
        with monkeypatch.context() as patch:
            patch.setattr('time.monotonic', lambda: now[0])
            patch.setattr('sys.stdout.isatty', lambda: terminal)
            hook = MetricsHook('m', 10, position='after_iter', freq=freq, limits=Limits(**limits))
            now[0] = 60.  # the start
            for update in range(made):
                now[0] += seconds
                hook(engine(update, (update + 1) * envstep))
            out = capsys.readouterr().out
        return out.split('\r\033[K')[1:] if terminal else out.splitlines()

    return shown


class TestProgress:

    @pytest.mark.parametrize(
        'freq, seconds, printed',
        [
            (3, 1., ['1', '3', '6']),
            (100, 4., ['1', '4', '7']),  # after ten seconds without a line there is one
        ]
    )
    def test_in_a_file_every_so_often(self, progress, freq, seconds, printed):
        lines = progress(8, seconds, terminal=False, freq=freq)
        assert [line.split()[1] for line in lines] == printed and '\r' not in lines[0]
        assert len(metrics()) == 8 and 'train_time' not in metrics()[0]

    @pytest.mark.parametrize(
        'columns, line',
        [
            (
                140, 'update 3 of 200  01:12  13:08 left  [----------]  reward 1.25  answer 0.50  length 6.0  '
                'entropy 1.00  clipped 0.00  9 tokens/s'
            ),
            (80, 'update 3 of 200  01:12  13:08 left  [----------]  reward 1.25  answer 0.50'),
            (10, 'update 3 '),  # narrower than the first field
        ]
    )
    def test_a_narrow_terminal_keeps_the_place_and_drops_whole_fields_from_the_end(
        self, progress, monkeypatch, columns, line
    ):
        monkeypatch.setenv('COLUMNS', str(columns))
        # 197 further updates of 4 seconds
        assert progress(3, updates=200, steps=10 ** 10)[-1] == line

    @pytest.mark.parametrize(
        'made, seconds, limits, shown',
        [
            # ten updates make 1000 environment steps
            (3, 4., dict(updates=11, steps=1000), ['01:04  [----------]', '01:08  00:32 left', '01:12  00:28 left']),
            (2, 1800., dict(updates=10 ** 10, steps=500), ['31:00  reward', '1:01:00  1:30:00 left']),
            (4, 4., dict(updates=3e0, steps=10 ** 10), [*['of 3  01:'] * 2, '01:12  00:00 left', '01:16  00:00 left']),
            (2, 4., dict(updates=10 ** 8, steps=10 ** 8), ['01:04  reward', '01:08  reward']),  # those of DI-engine
        ]
    )
    def test_the_time_left_is_that_of_the_nearest_limit_and_without_the_start(
        self, progress, made, seconds, limits, shown
    ):
        """A pipeline may make more updates than its limit."""
        lines = progress(made, seconds, **limits)
        assert len(lines) == made and all(part in line for part, line in zip(shown, lines)), lines

    def test_a_bar_on_a_pseudo_terminal_and_only_lines_in_a_file(self, own_folder, monkeypatch):
        monkeypatch.setenv('COLUMNS', '80')
        master, slave = pty.openpty()
        seen = b''
        with open(slave, 'w') as terminal, open(master, 'rb', buffering=0) as screen, open('out', 'w') as file:
            for out in (terminal, file):
                with redirect_stdout(out):
                    hook = MetricsHook('m', 10, position='after_iter', freq=1, limits=Limits(updates=4))
                    for update in range(4):
                        hook(engine(update))
                    print('end', flush=True)
            while not seen.endswith(b'end\r\n'):
                seen += screen.read(1000)
        lines = seen.decode().split('\r\x1b[K')[1:]
        bars = ['[##--------]', '[#####-----]', '[#######---]', '[##########]']
        assert len(lines) == 4 and re.findall(r'\[.*?\]', ' '.join(lines)) == bars
        with open('out') as file:
            plain = file.read()
        assert [line.split()[:2] for line in plain.splitlines()] == [*(['update', i] for i in '1234'), ['end']]
        assert plain.replace('\n', '').isprintable() and '[' not in plain


def test_update_log_is_one_line_an_update_by_hand(own_folder):
    names = ['loss', 'adv_max', 'act', 'missing', 'table']
    steps = [dict(loss=np.float32(i), adv_max=-float(i), hidden=1., table=[1]) for i in (1, 2, 6)]
    steps[1]['act'] = 3  # of one mini-batch only
    after = engine(9, policy=SimpleNamespace(monitor_vars=lambda: names))  # after the three mini-batches
    UpdateLog()(after, steps)
    record, = metrics()
    assert record.pop('seconds') >= 0
    assert record == dict(train_iter=6, envstep=7, loss=3., adv_max=-1., act=3.)


class TestReportHook:

    def test_unknown_option(self):
        with pytest.raises(ConfigError, match="ext_args.exprt = True: unknown key; did you mean 'export'"):
            ReportHook('report', 90, position='before_run', ext_args=EasyDict(exprt=True))

    def test_is_registered_for_configs_in_place_of_di_engines_hooks(self):
        own = GRPOPolicy.config['learn']['learner']['hook']
        assert [type(h) for h in build_learner_hook_by_cfg(EasyDict(own))['before_run']] == [ReportHook]
        assert set(BaseLearner.default_config().hook) - set(own) == {'load_ckpt_before_run'}
