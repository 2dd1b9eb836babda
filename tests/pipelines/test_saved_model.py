"""What a run leaves is a model of `transformers`: a process that knows nothing of this project finds its accuracy."""
import json
import runpy
import sys

import pytest
from easydict import EasyDict

from dizoo_llm import sft
from tests.processes import call
from tests.runs import evaluations, train
from tests.shipped import load

pytest.importorskip('accelerate')
TASK = '''
chars = '0123456789+='
def problems():
    return [dict(prompt=f'{a}+{b}=', answer=str(a + b)) for a in range(10) for b in range(10)]
def score(problem, completion):
    return float(completion == problem['answer'])
'''
PLAIN = '''
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, file = sys.argv[1:]
problems = json.load(open(file))
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
right = 0
for prompt, answer in problems:
    ids = tokenizer(prompt, return_tensors='pt', add_special_tokens=False).input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.shape[1]:]
    right += tokenizer.decode(out, skip_special_tokens=True) == answer
assert not any(name.startswith('ding') or name.startswith('dizoo') for name in sys.modules)
print(json.dumps(right / len(problems)))
'''


@pytest.mark.envtest
def test_a_fresh_process_finds_the_evaluated_accuracy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'sums.py').write_text(TASK)
    task = dict(type='file', path='sums.py')
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    warm = EasyDict(
        exp_name='warm',
        env=dict(task=task, max_new_tokens=3),
        model=dict(config=dict(model_type='llama', **shape)),
        train=dict(examples=100, batch_size=50, max_steps=60, learning_rate=5e-3, eval_freq=60, eval_problems=100),
    )
    folder, _ = sft.train(warm, seed=0)
    env = dict(max_new_tokens=3, collector_env_num=64, evaluator_env_num=100, n_evaluator_episode=100)
    main, create = load('chain_sum_grpo', exp_name='run', env=env)
    main.env.task, main.env.tokenizer.pretrained, main.policy.model.pretrained = task, folder, folder
    main.policy.collect.groups = main.policy.learn.batch_groups = 8
    main.policy.eval.evaluator.eval_freq = 5
    train((main, create), 11, learning_rate=1e-3, lr_scheduler=dict(type='constant'))
    best = max(e['eval_episode_return'] for e in evaluations())
    assert 0.1 < best < 0.95  # else every wrong way of reading the model would agree

    problems = runpy.run_path('sums.py')['problems']()
    (tmp_path / 'plain.py').write_text(PLAIN)
    (tmp_path / 'problems.json').write_text(json.dumps([[p['prompt'], p['answer']] for p in problems]))
    code, out, err = call([sys.executable, 'plain.py', 'run/model/best', 'problems.json'], tmp_path)
    assert code == 0, err
    assert json.loads(out) == pytest.approx(best)
