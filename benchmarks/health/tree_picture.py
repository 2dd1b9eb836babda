"""
The tree of a group of a real run, as the report draws it. Trains think_answer with trees for 100 updates, unless the
run is there, and writes docs/results/tree_of_a_group.png with a headless Chromium.
"""
import base64
import os
import tempfile

import click

from benchmarks.shared.paths import ROOT
from benchmarks.shared.runs import run
from ding_grpo.report.page import write_page
from ding_grpo.report.run import read_run
from tests.browser import Browser

UPDATE, GROUP = 100, 11
RUN = os.path.join('runs', 'tree_of_a_group')
FOUND = f'x => x.querySelector("header b").textContent === "{GROUP}"'
BOX = f'[...document.querySelectorAll("#c-groups .group")].find({FOUND})'
# from the top of the group to the end of its tree, without the list of its rows
CLIP = f"""(() => {{ const group = {BOX}; group.scrollIntoView(); const box = group.getBoundingClientRect();
    const end = group.querySelector('.tree').getBoundingClientRect().bottom;
    return {{x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: end - box.y + 2, scale: 1}}; }})()"""


def train() -> None:
    """The run whose last update, 100, is in the record of tokens."""
    run(
        'think_answer_grpo',
        seed=0,
        folder=os.path.basename(RUN),
        bar=1,
        go_on=True,
        learn=dict(advantage='tree', adv_method='rloo', learner=dict(hook=dict(save_ckpt_after_iter=UPDATE))),
        collect=dict(tree=dict(branches=[2, 2], at='tokens', tokens=[2, 5])),
        policy=dict(instruments=dict(tokens_every=10)),
        max_train_iter=UPDATE + 1
    )


def picture(page: str) -> bytes:
    """The tree of the group in the last record of a report."""
    with tempfile.TemporaryDirectory() as folder, Browser(folder) as browser:
        browser.open(page, width=1000)
        browser.choose('c-sort', 'number')
        while not browser.value(f'{BOX} !== undefined'):
            browser.click('c-next')
            browser.wait('document.querySelector("#c-groups .group") !== null')
        shot = browser.call('Page.captureScreenshot', clip=browser.value(CLIP), captureBeyondViewport=True)
        return base64.b64decode(shot['data'])


@click.command()
def main() -> None:
    """Train if there is no such run, and write docs/results/tree_of_a_group.png."""
    os.chdir(ROOT)
    if not os.path.exists(os.path.join(RUN, 'result.pkl')):
        train()
    page = os.path.join(RUN, 'report.html')
    write_page(page, [read_run(RUN)])
    with open(os.path.join('docs', 'results', 'tree_of_a_group.png'), 'wb') as f:
        f.write(picture(page))


if __name__ == '__main__':
    main()
