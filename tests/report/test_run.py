"""From the files of a run to the data of the page."""
import base64
import html
import json
import os
import shutil
import subprocess
import zlib

import pytest
from click.testing import CliRunner

from ding_grpo.report import page
from ding_grpo.report.chunks import read_sources
from ding_grpo.report.command import main
from ding_grpo.report.config_diff import read_settings
from ding_grpo.report.run import curves, read_run, thinned


def write(path, *records, end='\n'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(map(json.dumps, records)) + end)


def groups(source):
    """All groups of a source in the order of its places, decoded."""
    chunks = [json.loads(zlib.decompress(base64.b64decode(text))) for text in source.chunks]
    return [[chunks[place.chunk][place.index] for place in places] for _, places in source.updates]


def token_row(reward, **changes):
    numbers = dict(logp_old=[-1.0], logp=[-1.0], entropy=[0.5], logp_new=[-0.75], advantage=[0.25])
    return dict(
        dict(row=0, reward=reward, reward_parts={}, truncated=False, failed=False, action=[3], text=['a'], own=[True]),
        **dict(numbers, **changes)
    )


METRICS, FINDINGS = 'log/learner/metrics.jsonl', 'findings.jsonl'
RECORD, COMPLETIONS = 'log/learner/tokens.jsonl', 'log/collector/completions.jsonl'
EVALUATIONS = 'log/evaluator/evaluations.jsonl'
TOKENS = dict(group=0, collect_iter=0, prompt='p', train_iter=0, rows=[token_row(1.)])
TEXTS = dict(prompt='p', completion='c', reward_parts={}, truncated=False, failed=None)
TABLE = dict(TEXTS, train_iter=0, group=0, reward=0.)
EPISODE = {'return': 1., **TEXTS}
EVALUATION = dict(train_iter=0, eval_episode_return=1., kinds=dict(k=dict(mean=.5)), completions=[EPISODE])
FINDING = dict(update=1, cause='x', message='m')
NO_GROUPS = [dict(reward='high'), dict(completion=7), dict(reward_parts=[1]), dict(group=[0]), dict(advantage='x')]
NO_TOKENS = [dict(rows=3), dict(prompt=[1]), dict(train_iter='x')]
NO_TOKENS += [dict(rows=[row]) for row in (token_row('1'), token_row(1., logp=['x']), token_row(1., text=[5]))]
NO_EPISODES = [dict(completions=x) for x in ([{}], [dict(EPISODE, prompt=1)], 5)] + [dict(kinds=dict(k=1))]


def test_curves_of_records_that_lack_names_or_are_not_finite():
    records = dict(a=1.0), dict(b=float('nan'), s='x'), dict(a=1 / 3, flag=True)
    assert curves(records) == dict(a=[1.0, None, 0.3333333], b=[None, None, None])


@pytest.mark.parametrize('number, kept', [(0, 0), (2000, 2000), (2001, 1001), (4000, 2000)])
def test_long_curves_are_thinned_and_keep_their_end(number, kept):
    found = thinned([dict(train_iter=i) for i in range(number)])
    assert len(found) == kept
    assert found[-1:] == [dict(train_iter=number - 1)] * (number > 0)


def test_a_run_in_progress_with_half_a_line_and_missing_files(tmp_path):
    (tmp_path / 'log').mkdir()
    assert read_run(str(tmp_path)).metrics == {} and read_run(str(tmp_path)).findings is None
    write(tmp_path / METRICS, dict(train_iter=0, seconds=1.), end='\n{"train_it')
    write(tmp_path / FINDINGS, dict(update=3, cause='rate', message='too small'), end='\n{"upd')
    run = read_run(str(tmp_path))
    assert (run.updates, run.metrics['train_iter'], len(run.findings)) == (1, [0], 1)


def test_seconds_and_memory_by_part(tmp_path):
    """Seconds sum to the duration; memory is the largest of an update, and scoring has no record of it."""
    parts = dict(seconds_sampling=1., seconds_scoring=.5, seconds_updating=2.)
    first = dict(parts, seconds=4., memory_mib_sampling=7., memory_mib_updating=3.)
    second = dict(parts, seconds=10., memory_mib_sampling=5., memory_mib_updating=float('nan'))
    write(tmp_path / METRICS, first, second, dict(seconds=10., memory_mib_updating=4.))
    run = read_run(str(tmp_path))
    assert run.seconds == dict(sampling=2., scoring=1., updating=4., other=3.)
    assert run.memory == dict(sampling=7., updating=4.) and run.metrics['memory_mib_sampling'] == [7., 5., None]


def test_kinds_and_estimates_of_evaluations_are_curves(tmp_path):
    kinds = dict(sum=dict(mean=.25, episodes=4), product=dict(mean=.5, episodes=2))
    estimate = dict(mean=.75, low=.5, high=1.)
    write(tmp_path / EVALUATIONS, dict(train_iter=0, eval_episode_return=1., kinds=kinds, pass_at_2=estimate))
    found = read_run(str(tmp_path)).evaluations
    assert found['kind/sum'] == [.25] and found['kind/product'] == [.5] and found['pass_at_2/low'] == [.5]


def test_groups_have_their_mean_and_spread(tmp_path):
    nan = float('nan')
    rows = [token_row(1.0), token_row(0.25, logp=[nan]), token_row(nan, failed=True), token_row(9.0, failed=True)]
    record = dict(group=4, collect_iter=0, prompt='p')
    failed = dict(record, train_iter=5, rows=[token_row(0., failed=True)])
    write(tmp_path / 'learner' / 'tokens.jsonl', dict(record, train_iter=0, rows=rows), failed)
    source, = read_sources(str(tmp_path))
    (first, places), (second, unscored) = source.updates
    assert (first, second) == (0, 5) and unscored[0][2:] == (None, None)
    assert places[0].mean == 0.625 and places[0].spread == 0.75
    (group, ), _ = groups(source)
    assert group['rows'][0]['logp_new'] == [-0.75] and group['rows'][1]['logp'] == [None] and group['prompt'] == 'p'


def test_rows_of_a_tree_keep_whose_tokens_they_have(tmp_path):
    records = [dict(TOKENS, rows=[token_row(1.0, **leader)]) for leader in (dict(leader=[7]), {})]
    write(tmp_path / 'learner' / 'tokens.jsonl', *records)
    source, = read_sources(str(tmp_path))
    assert [group['rows'][0].get('leader') for group in groups(source)[0]] == [[7], None]


def test_rows_of_a_group_are_together_though_failed_rows_are_written_later(tmp_path):
    failed = dict(TABLE, failed='raised')
    write(tmp_path / 'collector' / 'completions.jsonl', TABLE, dict(TABLE, group=1), failed)
    source, = read_sources(str(tmp_path))
    (first, second), = groups(source)
    assert [r['failed'] for r in first['rows']] == [None, 'raised'] and len(second['rows']) == 1


def test_many_completions_are_in_several_chunks(tmp_path):
    records = [dict(TOKENS, group=g, prompt='word ' * 20_000) for g in range(9)]
    write(tmp_path / 'learner' / 'tokens.jsonl', *records)
    source, = read_sources(str(tmp_path))
    assert len(source.chunks) == 3 and [g['group'] for g in groups(source)[0]] == list(range(9))


@pytest.mark.parametrize(
    'name, good, bad', [
        (METRICS, dict(train_iter=0, reward_mean=1.), [b'{', b'[1]', b'"\xff"', b'[' * 10 ** 5]),
        (FINDINGS, FINDING, [b'{', b'{"update": 1}', b'\xff', b'{"a":' * 10 ** 5, b'null']),
        (RECORD, TOKENS, [b'{}', *NO_TOKENS]),
        (COMPLETIONS, TABLE, [b'{}', *NO_GROUPS]),
        (EVALUATIONS, EVALUATION, [b'{', *NO_EPISODES]),
    ]
)
def test_a_bad_line_is_named_and_the_rest_is_shown(tmp_path, name, good, bad):
    """Not a traceback, nor a page that the browser cannot read. A dict has the changes that make a good line bad."""
    for number, line in enumerate(bad):
        line = line if isinstance(line, bytes) else json.dumps(dict(good, **line)).encode()
        path, out = tmp_path / str(number) / name, str(tmp_path / f'{number}.html')
        (tmp_path / str(number) / 'log').mkdir(parents=True)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b'\n'.join([json.dumps(good).encode(), line, json.dumps(dict(good, group=1)).encode(), b'']))
        done = CliRunner().invoke(main, [str(tmp_path / str(number)), '--out', out])
        told = [line for line in done.output.splitlines() if 'cannot be read' in line]
        assert done.exit_code == 0 and len(told) == 1, (line, done.output)
        assert f'{path}: line 2 cannot be read (' in told[0]
        run = shown(out)
        rows = [len(run[part].get('train_iter', ())) for part in ('metrics', 'evaluations')]
        rows += [len(run['findings'] or ())]
        rows += [sum(len(places) for source in run['sources'] for _, places in source['updates'])]
        assert 2 in rows, (line, rows)


def shown(path):
    """The data of a page, as a browser reads it: without NaN."""
    text = open(path).read().partition('<script type="application/json" id="data">')[2].partition('</script>')[0]
    run, = json.loads(text, parse_constant=pytest.fail)['runs']
    return run


def test_numbers_that_json_lacks_are_none_and_texts_end_no_script(tmp_path):
    nan, text = float('nan'), '</script><script>x'
    write(tmp_path / FINDINGS, dict(FINDING, value=nan), dict(FINDING, update=nan, message=text))
    write(tmp_path / METRICS, dict(train_iter=0, seconds=nan, reward_mean=nan))
    write(tmp_path / COMPLETIONS, dict(TABLE, reward=nan, advantage=float('inf')))
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 0
    run = shown(str(tmp_path / 'report.html'))
    assert [found['message'] for found in run['findings']] == ['m', text] and run['metrics']['seconds'] == [None]


@pytest.mark.skipif(shutil.which('node') is None, reason='needs node')
def test_names_of_curves_are_text_for_plotly(tmp_path):
    """Plotly makes a link of <a>, and replaces entities after it has looked for tags."""
    name = '<a href="https://e.example">log in</a> &lt;b&gt;'
    script = tmp_path / 'a.js'
    script.write_text(
        'global.IntersectionObserver = class { observe() {} };'
        "global.make = () => ({append() {}, dataset: {}}); global.add = x => x;"
        'global.Plotly = {react: (plot, found) => console.log(JSON.stringify(found.map(t => t.name)))};' +
        open(os.path.join(os.path.dirname(page.__file__), 'curves.js')).read() +
        f"\nconst plot = chart(null, 't', () => [{{name: {json.dumps(name)}}}, {{}}], () => 'x'); charts.get(plot)();"
    )
    out = subprocess.run(['node', str(script)], capture_output=True, text=True)
    found, without = json.loads(out.stdout or 'null') or out.stderr
    assert '<' not in found and html.unescape(found) == name and without is None


CONFIG = '''
inf, nan = float('inf'), float('nan')

exp_config = {'env': {'type': 'gymnasium_env', 'import_names': ['ding_grpo'], 'stop_value': inf},
 'policy': {'type': 'grpo_command', 'group_size': 16,
            'learn': {'learning_rate': 1e-05, 'learner': {'log_policy': False}}},
 'exp_name': 'run', 'seed': 0}
'''


def test_settings_that_differ_from_their_defaults(tmp_path):
    (tmp_path / 'total_config.py').write_text(CONFIG)
    found = {s.key: s for s in read_settings(str(tmp_path))}
    assert found['policy.group_size'][1:] == ('16', '8', True)
    assert found['policy.learn.learning_rate'][1:] == ('1e-05', '1e-05', False)
    assert found['policy.learn.learner.log_policy'].differs is False  # the policy's default, not DI-engine's
    assert found['env.stop_value'].value == 'inf'
    assert found['policy.type'][1:] == ("'grpo'", "'grpo'", False)


@pytest.mark.parametrize('text', ['exp_config = {"env": __import__("os").getcwd()}', 'x = 1', 'exp_config = {', None])
def test_a_config_that_is_code_is_not_run(tmp_path, text):
    if text is not None:
        (tmp_path / 'total_config.py').write_text(text)
    assert read_settings(str(tmp_path)) is None


def test_errors_name_the_folder(tmp_path):
    (tmp_path / 'empty').mkdir()
    for name, words in (('nothing', 'there is no such folder'), ('empty', 'contains no folder log')):
        found = CliRunner().invoke(main, [str(tmp_path / name)])
        assert found.exit_code == 1 and str(tmp_path / name) in found.output and words in found.output
    (tmp_path / 'empty' / 'log').mkdir()
    found = CliRunner().invoke(main, [str(tmp_path / 'empty'), '--out', str(tmp_path / 'no' / 'page.html')])
    assert found.exit_code == 2 and '--out' in found.output and 'No such file' in found.output
