"""The page in a browser: it renders, its buttons work, and no text of a model is run."""
import json

import pytest

from ding_grpo.report.page import write_page
from ding_grpo.report.run import read_run
from tests.browser import Browser, find_browser

pytestmark = [
    pytest.mark.envtest,
    pytest.mark.skipif(find_browser() is None, reason='needs Chromium (Debian: apt-get install chromium)'),
]
HOSTILE = '</script><script>window.ran = 1</script><img src=x onerror="window.ran = 1"> ]]> &lt; \u2028 \x00 -->'


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(record) + '\n' for record in records))


def token_row(number, group):
    reward = float(number < group)
    return dict(
        row=number,
        reward=reward,
        reward_parts=dict(right=reward, form=0.5),
        truncated=number == 1,
        failed=False,
        action=[0] * 3,
        text=[HOSTILE, 'a', ' b'],
        own=[True, True, number != 2],
        logp_old=[-1.5] * 3,
        logp=[-1.0] * 3,
        logp_new=[-0.75, -2.0, -2.0],
        entropy=[0.5, 1.5, 2.5],
        advantage=[reward - 0.5] * 3,
        # group 5 is a tree: all rows share their first token, and rows 0 to 5 all three
        **(dict(leader=[0, *[max(number - 5, 0)] * 2]) if group == 5 else {}),
    )


def write_run(folder, name):
    """Files as a run writes them; in group g, row r has reward 1 if r < g."""
    log = folder / name / 'log'
    write(log / 'learner' / 'metrics.jsonl', [
        dict(train_iter=u, envstep=10 * u, seconds=u + 1., reward_mean=u / 20, reward_right_mean=u / 20,
             entropy=1. / (1 + u), seconds_sampling=.25, seconds_scoring=.25, seconds_updating=.25, constant=7.,
             memory_mib_sampling=100. - u, memory_mib_updating=300. + u)
        for u in range(20)
    ])  # yapf: disable
    texts = dict.fromkeys(('kind', 'prompt', 'completion'), HOSTILE)
    episode = {'index': 0, 'return': 1., 'reward_parts': {}, 'truncated': False, 'failed': None, **texts}
    kinds = {HOSTILE: dict(mean=.5, episodes=1)}
    write(log / 'evaluator' / 'evaluations.jsonl', [
        dict(train_iter=u, envstep=10 * u, seconds=1., eval_episode_return=u / 10, kinds=kinds, completions=[episode])
        for u in (0, 10)
    ])  # yapf: disable
    write(log / 'learner' / 'tokens.jsonl', [
        dict(train_iter=u, group=g, collect_iter=u, prompt=f'{HOSTILE} {g}', rows=[token_row(r, g) for r in range(10)])
        for u in (0, 10) for g in range(6)
    ])  # yapf: disable
    write(folder / name / 'findings.jsonl', [dict(update=3, cause=HOSTILE, message=HOSTILE)])
    return read_run(str(folder / name))


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    """A browser with a page about two runs."""
    folder = tmp_path_factory.mktemp('runs')
    write_page(str(folder / 'report.html'), [write_run(folder, name) for name in ('first <b>', 'second')])
    with Browser(tmp_path_factory.mktemp('browser')) as found:
        found.open(folder / 'report.html')
        found.wait('document.querySelector("#c-groups .group") !== null')
        yield found


def texts(page, selector):
    return page.value(f'[...document.querySelectorAll({selector!r})].map(node => node.textContent)')


def numbers(page):
    """The numbers of the groups that are shown."""
    return [int(text) for text in texts(page, '#c-groups .group > header > span:first-child > b')]


def shown_groups(page, number):
    page.wait(f'document.querySelectorAll("#c-groups .group").length === {number}')


def test_texts_are_shown_and_never_run(page):
    shown = HOSTILE
    assert page.value('window.ran') is None and page.value('document.querySelectorAll("#c-groups img").length') == 0
    assert texts(page, '.finding div')[0] == shown
    assert texts(page, '#c-groups .prompt')[0].startswith(shown) and texts(page, '#c-groups .row span')[0] == shown
    assert page.value('document.title').startswith('first <b>, second')
    page.choose('c-source', 'evaluation')
    page.wait(f'[...document.querySelectorAll("#c-groups .row span")].some(s => s.textContent === {json.dumps(shown)})')
    page.choose('c-source', 'tokens')
    shown_groups(page, 4)


def test_the_policy_stops_what_is_inserted_as_html(page):
    before = len(page.errors)
    page.value('document.body.insertAdjacentHTML("beforeend", `<img src=x onerror="window.ran = 1">`); 0')
    page.value(
        '{ const s = document.createElement("script"); s.textContent = "window.ran = 1"; document.body.append(s); 0 }'
    )
    page.value('fetch("http://127.0.0.1:9/").catch(() => 0)')
    assert page.value('window.ran') is None
    assert any('Content Security Policy' in error for error in page.errors[before:])
    del page.errors[before:]


def test_nothing_is_loaded_and_no_error_is_logged(page):
    assert page.errors == []
    assert all(url.startswith(('file:', 'data:', 'blob:')) for url in page.requests if '127.0.0.1:9' not in url)


def test_time_and_memory_by_part(page):
    """Of 20 updates of a quarter of a second each part; the run lasted 20 s. Memory as in ``write_run``."""
    rows = page.value(
        '[...document.querySelector("#time-parts table").rows].map(row => [...row.cells].map(cell => cell.textContent))'
    )
    assert rows[1:] == [
        ['sampling', '5.0 s', '25 %', '100 MiB', '81 MiB'],
        ['scoring', '5.0 s', '25 %', '–', '–'],
        ['updating', '5.0 s', '25 %', '319 MiB', '319 MiB'],
        ['other', '5.0 s', '25 %', '–', '–'],
    ]
    assert page.value('document.querySelectorAll("#m-sections [data-name^=memory_mib]").length') == 2  # curves


def test_groups_are_sorted_and_paged(page):
    page.choose('c-sort', 'spread')
    shown_groups(page, 4)
    assert numbers(page) == [1, 2, 3, 4] and 'page 1 of 2' in page.value('get("c-page").textContent')
    page.click('c-next')
    shown_groups(page, 2)
    assert numbers(page) == [5, 0] and page.value('get("c-next").disabled')
    assert 'equal' in texts(page, '#c-groups .group > header')[1]
    page.choose('c-sort', 'high')
    shown_groups(page, 4)
    assert numbers(page) == [5, 4, 3, 2]
    page.choose('c-sort', 'low')
    page.wait('document.querySelector("#c-groups b").textContent === "0"')
    assert numbers(page) == [0, 1, 2, 3]


def test_records_of_other_updates(page):
    assert '10 (record 2 of 2)' in page.value('get("c-number").textContent')
    page.click('c-before')
    page.wait('get("c-number").textContent.startsWith("0 ")')
    assert page.value('get("c-before").disabled') and not page.value('get("c-after").disabled')
    page.click('c-after')
    page.wait('get("c-number").textContent.startsWith("10 ")')


def test_tokens_have_the_colour_of_their_number(page):
    page.choose('c-sort', 'number')

    def colours(name):
        page.choose('c-colour', name)
        page.wait(f'get("c-legend").textContent.length {"===" if name == "none" else ">"} 0')
        page.value('new Promise(done => setTimeout(done, 100))')
        return page.value(
            '[...document.querySelectorAll("#c-groups .group:nth-child(2) .row:first-child span")]'
            '.map(span => span.style.background)'
        )

    # group 1: its first row has reward 1; log-probabilities change by +0.25, then by -1, twice
    assert colours('change') == ['rgba(0, 114, 178, 0.19)', *['rgba(213, 94, 0, 0.75)'] * 2]
    assert colours('none') == [''] * 3
    page.choose('c-colour', 'advantage')
    page.wait('document.querySelector("#c-groups span.reply") !== null')  # of the environment
    assert page.value('document.querySelector("#c-groups span.reply").style.background') == ''


def test_a_token_tells_its_numbers(page):
    page.value(
        '{ const span = document.querySelector("#c-groups span[data-t]");'
        'span.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 200, clientY: 300})); 0 }'
    )
    told = page.value('get("tip").textContent').split('\n')
    # exp(-1) = 0.3679, exp(-0.75) = 0.4724, exp(-0.75 + 1.5) = 2.117
    assert 'probability 0.3679 → 0.4724' in told and 'log-probability -1, change +0.25' in told
    assert 'ratio to the sampler 2.117' in told and 'entropy 0.5' in told


def test_a_tree_has_a_box_for_what_rows_share(page):
    """With the mean advantage of its own tokens: +0.5 in rows 0 to 4, which have reward 1, and -0.5 in the others. Row
    2 has one less: (9 * 0.5 - 2 * 0.5) / 11."""
    page.choose('c-sort', 'high')
    page.wait('document.querySelector("#c-groups .tree .branch") !== null')
    assert page.value('document.querySelectorAll("#c-groups .tree").length') == 1  # no other group of the page
    assert texts(page, '#c-groups .branch') == [HOSTILE, *['a b'] * 5]
    assert texts(page, '#c-groups .tree .ends div') == ['0.8333 (6 rows)', *['0'] * 4]
    titles = page.value('[...document.querySelectorAll("#c-groups .branch")].map(bar => bar.title)')
    assert titles[1] == 'tokens 1 to 2 of 6 rows, mean reward 0.8333, advantage +0.3182\na b'
    assert titles[2].startswith('tokens 1 to 2 of row 6, reward 0, advantage -0.5\n')


def test_all_rows_of_a_group(page):
    number = 'document.querySelector("#c-groups .group").querySelectorAll(".row").length'
    assert page.value(number) == 8
    page.value('document.querySelector("#c-groups .more").click()')
    assert page.value(number) == 10


def test_curves_of_both_runs_on_each_axis(page):
    box = '#m-sections .chart[data-name="entropy"]'
    page.value(f'document.querySelector({box!r}).scrollIntoView()')
    page.wait(f'document.querySelector({box!r} + " .plot").data !== undefined')
    data = f'document.querySelector({box!r} + " .plot").data'
    assert page.value(f'{data}.map(t => t.name)') == ['first &lt;b&gt;', 'second']  # plotly reads tags
    assert page.value(f'{data}[0].y.slice(0, 3)') == [1.0, 0.5, 0.3333333]
    page.choose('m-axis', 'seconds')
    page.wait(f'{data}[0].x[0] === 1')
    page.choose('m-smooth', '0.5')
    page.wait(f'{data}[0].y[1] !== 0.5')
    assert page.value(f'{data}[0].y[1]') == pytest.approx((.25 * 1 + .5 * .5) / .75)
    page.value('document.querySelectorAll("#m-runs input")[1].click()')
    page.wait(f'{data}.length === 1')
    page.choose('m-filter', 'ENTR')
    assert page.value('[...document.querySelectorAll("#m-sections .chart")].filter(b => b.offsetParent).length') == 1
    page.choose('m-filter', '')
    assert 'constant 7' in page.value('get("m-sections").textContent')
    assert page.value('get("config").hidden')  # without a config


def test_the_page_is_not_wider_than_a_phone(page):
    page.call('Emulation.setDeviceMetricsOverride', width=360, height=800, deviceScaleFactor=1, mobile=False)
    page.wait('innerWidth === 360')
    page.wait('document.documentElement.scrollWidth <= 360', seconds=10)
