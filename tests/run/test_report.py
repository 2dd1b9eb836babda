import numpy as np
import pytest
from ding.worker import BaseLearner
from easydict import EasyDict

from ding_common import ConfigError, read_json_lines
from ding_grpo.run.parts import Limits
from ding_grpo.run.report import MetricsHook, ReportHook, UpdateLog


class Engine:
    """What the hooks read of a learner."""

    def __init__(self):
        self.hooks = {}
        self.saved = []

        class Count:
            val = 4

            def add(self, n):
                self.val += n

        self.last_iter = Count()
        self.call_hook = self.saved.append


@pytest.mark.unittest
class TestMetricsHook:
    metrics = dict(
        reward_mean=1.25,
        reward_answer_mean=0.5,
        completion_length_mean=6.,
        entropy=1.,
        clipfrac=0.,
        tokens_per_second=9.
    )

    def engine(self, update):
        engine = Engine()
        engine.last_iter.val = update
        engine.exp_name, engine.instance_name, engine.collector_envstep = 'run', 'learner', 7
        engine.log_buffer = dict(scalar=dict(self.metrics, train_time=3.))
        engine.tb_logger = type('Writer', (), dict(add_scalar=lambda *args: None))()
        return engine

    def test_progress_in_a_file_every_so_often(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        hook = MetricsHook('m', 10, position='after_iter', freq=3)
        for update in range(7):
            hook(self.engine(update))
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines] == ['1', '3', '6'] and '\r' not in lines[0]
        records = read_json_lines('run/log/learner/metrics.jsonl')
        assert len(records) == 7 and 'train_time' not in records[0]

    def test_after_ten_seconds_without_a_line_there_is_one(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        now = [0.]
        monkeypatch.setattr('time.monotonic', lambda: now[0])
        hook = MetricsHook('m', 10, position='after_iter', freq=100)
        for update in range(8):
            hook(self.engine(update))
            now[0] += 4
        assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ['1', '4', '7']

    def lines(self, monkeypatch, number, seconds=4., envstep=100, **limits):
        """On a terminal, of updates that take so many seconds and environment steps each."""
        now = [0.]
        monkeypatch.setattr('time.monotonic', lambda: now[0])
        shown = []
        monkeypatch.setattr('click.echo', lambda text, nl: shown.append(text.removeprefix('\r\033[K')))
        hook = MetricsHook('m', 10, position='after_iter', freq=3, limits=Limits(**limits))
        hook._terminal = True
        now[0] = 60.  # the start
        for update in range(number):
            now[0] += seconds
            engine = self.engine(update)
            engine.collector_envstep = (update + 1) * envstep
            hook(engine)
        return shown

    @pytest.mark.parametrize(
        'columns, line', [
            (
                120, 'update 3 of 200  01:12  13:08 left  reward 1.25  answer 0.50  length 6.0  entropy 1.00  '
                'clipped 0.00  9 tokens/s'
            ),
            (80, 'update 3 of 200  01:12  13:08 left  reward 1.25  answer 0.50  length 6.0'),
            (60, 'update 3 of 200  01:12  13:08 left  reward 1.25  length 6.0'),
            (30, 'update 3 of 200  01:12'),
            (10, 'update 3 '),
        ]
    )
    def test_a_narrow_terminal_keeps_the_place_and_drops_whole_fields_from_the_end(
        self, tmp_path, monkeypatch, columns, line
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv('COLUMNS', str(columns))
        # 197 further updates of 4 seconds
        assert self.lines(monkeypatch, 3, updates=200, steps=10 ** 10)[-1] == line

    def test_the_time_left_is_that_of_the_nearest_limit_and_without_the_start(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        # ten updates make 1000 environment steps
        shown = self.lines(monkeypatch, 3, updates=11, steps=1000)
        assert [line.split('  ')[2] for line in shown] == ['reward 1.25', '00:32 left', '00:28 left']
        shown = self.lines(monkeypatch, 2, seconds=1800., updates=10 ** 10, steps=500)
        assert shown[-1].startswith('update 2  1:01:00  1:30:00 left  ')  # three further updates

    def test_a_limit_as_people_write_it_and_the_last_update(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shown = self.lines(monkeypatch, 4, updates=3e0, steps=10 ** 10)
        assert shown[2].startswith('update 3 of 3  01:12  00:00 left  ')
        assert shown[3].startswith('update 4 of 3  01:16  00:00 left  ')  # of a pipeline that makes more

    def test_without_a_limit_no_time_is_left(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shown = self.lines(monkeypatch, 2, updates=10 ** 8, steps=10 ** 8)  # those of DI-engine
        assert shown[-1].startswith('update 2  01:08  reward')
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert self.lines(monkeypatch, 1)[-1].startswith('update 1  01:04  reward')

    def test_progress_on_a_terminal_rewrites_one_line(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv('COLUMNS', '10')  # narrower than the first field
        hook = MetricsHook('m', 10, position='after_iter', freq=3)
        hook._terminal = True
        for update in range(100, 102):
            hook(self.engine(update))
        out = capsys.readouterr().out
        # (click takes the code that clears the line out of what is no terminal)
        assert out == '\rupdate 10\rupdate 10'


@pytest.mark.unittest
class TestUpdateLog:

    def test_one_line_an_update_by_hand(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        engine = Engine()
        engine.last_iter.val = 9  # after the three mini-batches
        engine.exp_name, engine.instance_name, engine.collector_envstep = 'run', 'learner', 7
        names = ['loss', 'adv_max', 'act', 'missing', 'table']
        engine.policy = type('Policy', (), dict(monitor_vars=lambda self: names))()
        steps = [dict(loss=np.float32(i), adv_max=-float(i), hidden=1., table=[1]) for i in (1, 2, 6)]
        steps[1]['act'] = 3  # of one mini-batch only
        UpdateLog()(engine, steps)
        record, = read_json_lines('run/log/learner/metrics.jsonl')
        assert record.pop('seconds') >= 0
        assert record == dict(train_iter=6, envstep=7, loss=3., adv_max=-1., act=3.)


@pytest.mark.unittest
class TestReportHook:

    def test_unknown_option(self):
        with pytest.raises(ConfigError, match="ext_args.exprt = True: unknown key; did you mean 'export'"):
            ReportHook('report', 90, position='before_run', ext_args=EasyDict(exprt=True))

    def test_is_registered_for_configs(self):
        from ding.worker.learner.learner_hook import build_learner_hook_by_cfg

        from ding_grpo.policy import GRPOPolicy
        hooks = build_learner_hook_by_cfg(EasyDict(GRPOPolicy.config['learn']['learner']['hook']))
        assert [type(h) for h in hooks['before_run']] == [ReportHook]
        assert set(BaseLearner.default_config().hook) - set(GRPOPolicy.config['learn']['learner']['hook']) == \
            {'load_ckpt_before_run'}
