"""The line, the file and the page of findings."""
from types import SimpleNamespace

import pytest
from easydict import EasyDict

from ding_grpo.instruments.findings import page
from ding_grpo.instruments.history import History
from ding_grpo.instruments.watch import Watch
from ding_grpo.learn.observer import View
from tests.runs import findings

FOUND = dict(update=3, cause='cut', message='a | b\nc', rows=7)
PROBE = dict(problem=0, kind='junk', text='x|y', reward=1.0, value=None)
LEARNER = SimpleNamespace(exp_name='run', rank=0)


def watch(**fields):
    found = Watch(View(EasyDict(learn=dict(advantage='group')), None, None, None, None, None))
    found.history = History(**fields)
    return found


def begin(watched):
    """How many problems a collector was asked for, whose scorer pays 1 for everything."""
    asked = []

    def probe(problems):
        asked.append(problems)
        return [dict(PROBE, kind=kind, value=1.0, ended=True) for kind in ('demonstration', 'junk')]

    watched.begin(LEARNER, SimpleNamespace(probe=probe))
    return asked


def written(watched):
    watched.write_page(LEARNER)
    with open('run/findings.md') as f:
        return f.read()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'run').mkdir()


def test_the_scorer_is_probed_before_the_first_update(capsys):
    assert begin(watch()) == [3]
    found, = findings()
    assert (found['update'], found['cause']) == (0, 'always_paid')
    assert capsys.readouterr().out == f"finding after update 0, always_paid: {found['message']}\n"


def test_not_again_in_a_resumed_run_whose_findings_are_in_its_file():
    resumed = watch(updates=4, found=[FOUND])
    assert begin(resumed) == [] and findings() == []
    resumed.history.found.append(dict(FOUND, update=5))
    resumed.show(LEARNER)
    resumed.show(LEARNER)
    assert findings() == [dict(FOUND, update=5)]


def test_a_page_without_findings_and_with(capsys):
    assert 'None. The known causes' in written(watch())
    text = written(watch(found=[FOUND], probes=[PROBE]))  # a bar or a line break would tear the table
    assert '| 3 | `cut` | a \\| b c |' in text and '| 0 | junk: x\\|y | 1 | - |' in text
    told = 'finding after update 3, cut: a | b\nc\n'  # as one of the last evaluation
    assert capsys.readouterr().out == f'findings: none (run/findings.md)\n{told}findings: cut (run/findings.md)\n'


@pytest.mark.parametrize(
    'text, shown', [
        ('\x1b[31mred\x07', r'\x1b[31mred\x07'),
        ('<img src=x onerror=y>', r'\<img src=x onerror=y>'),
        ('[log in](http://e.example)', r'[log in]\(http://e.example)'),
        ('![x](http://e.example)', r'![x]\(http://e.example)'),
        ('`a` | b', r'\`a\` \| b'),
        ('policy.learn.x = [0.83, 1.2] (a)', 'policy.learn.x = [0.83, 1.2] (a)'),
    ]
)
def test_texts_of_a_model_and_names_are_only_text(text, shown):
    """Neither a control character, nor HTML, a link, an image, code or a further cell."""
    found, probe = dict(FOUND, message=text), dict(PROBE, text=text)
    recent = dict(rows=4, cut=1, groups=2, equal=1, mean=0.5)
    history = History(low=0., high=1., first=dict(mean=0.), recent=[recent], parts={text: [0., 1.]}, found=[found])
    history.probes = [probe]
    lines = page(text, history.state_dict()).splitlines()
    assert lines[0] == f'# Findings of {shown}' and f'| 3 | `cut` | {shown} |' in lines
    assert f'| lowest and highest reward part {shown} | 0, 1 |' in lines
    assert any(line.startswith(f'| 0 | junk: {shown} |') for line in lines)


def test_figures():
    update = dict(rows=4, cut=1, groups=2, equal=1, mean=0.5, entropy=1.5)
    looks = [dict(moved=0.1, outside=0.2, follow=0.3)]
    history = History(updates=2, rows=8, ended=6, low=0., high=1., recent=[update], parts=dict(a=[0., 1.]), looks=looks)
    history.first = dict(mean=0.25, std=0., entropy=3.)
    text = page('run', history.state_dict())
    for row in ('updates | 2', 'rows | 8, of which a limit cut 2', 'update | 0.25, 0.5', 'update | 1 of 2',
                'part a | 0, 1', 'update | 3, 1.5 nats', 'an update | 0.1 nats', '[0.83, 1.2] | 0.2', '[-1, 1] | 0.3'):
        assert f'{row} |' in text, row
