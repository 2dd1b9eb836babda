"""The programs of examples/beside_trl, here with a small model. TRL itself is not installed."""
import ast
import json
import os
import runpy

import pytest

from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.bonus.helper import TINY
from tests.processes import ROOT
from tests.project.documents import read
from tests.runs import metrics

FOLDER = os.path.join('examples', 'beside_trl')
LETTERS = ''.join(map(chr, range(32, 127)))


@pytest.mark.envtest
def test_data_reward_and_program(own_folder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, FOLDER))
    (tmp_path / 'prepare.py').write_text('\n'.join(read(os.path.join(FOLDER, 'prepare.py')).splitlines()[:-1]))
    runpy.run_path('prepare.py')
    rows = {name: [json.loads(line) for line in (tmp_path / f'{name}.jsonl').open()] for name in ('train', 'eval')}
    assert [len(each) for each in rows.values()] == [365, 100]
    texts = [{row['prompt'][0]['content'] for row in each} for each in rows.values()]
    assert not texts[0] & texts[1]
    tokenizer = build_char_tokenizer(LETTERS)
    tokenizer.chat_template = '{% for m in messages %}{{ m.content }}{% endfor %}'
    tokenizer.save_pretrained('tokenizer')
    config = dict(TINY, max_position_embeddings=99)
    small = f"dict(config={config!r}), **{{'env.tokenizer': dict(pretrained='tokenizer')}}"
    text = read(os.path.join(FOLDER, 'with_ding_grpo.py')).replace("'model'", small).replace('updates=30', 'updates=1')
    run = {}
    exec(text.replace('seed=0', "seed=0, exp_name='run'"), run)
    assert len(metrics()) == 1 and os.path.exists('trained/model.safetensors')
    assert run['correct']([[dict(role='assistant', content='2 + 3 = 5.')]] * 2, ['5', '6']) == [1.0, 0.0]


def test_the_page_shows_the_files():
    page = read('docs/results/side_by_side.md')
    for name in ('rewards.py', 'with_ding_grpo.py', 'with_trl.py'):
        assert read(os.path.join(FOLDER, name)).strip() in page, name
    settings, = (
        node for node in ast.walk(ast.parse(read(os.path.join(FOLDER, 'with_trl.py'))))
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'GRPOConfig'
    )
    given = {k.arg: k.value.value for k in settings.keywords if isinstance(k.value, ast.Constant)}
    same = dict(max_steps=30, num_generations=8, max_completion_length=16, learning_rate=1e-5, warmup_steps=5)
    assert {key: given[key] for key in same} == same and given['per_device_train_batch_size'] == 8 * 8
