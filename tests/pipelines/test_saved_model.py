"""What a run leaves is a model of `transformers`: a process that knows nothing of this project finds its accuracy."""
import json
import runpy
import subprocess
import sys

import pytest
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_common import read_json_lines
from dizoo_llm.sft import train

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
class TestSavedModel:

    def test_a_fresh_process_finds_the_evaluated_accuracy(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'sums.py').write_text(TASK)
        task = dict(type='python', file='sums.py')
        shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        warm = EasyDict(
            exp_name='warm',
            env=dict(task=task, max_new_tokens=3),
            model=dict(config=dict(model_type='llama', **shape)),
            train=dict(examples=100, batch_size=50, max_steps=60, learning_rate=5e-3, eval_freq=60, eval_problems=100),
        )
        folder, _ = train(warm, seed=0)
        main, create = load('chain_sum_grpo')
        main.exp_name, main.env.task, main.env.max_new_tokens = 'run', EasyDict(task), 3
        main.env.tokenizer.pretrained = main.policy.model.pretrained = folder
        main.env.update(collector_env_num=64, evaluator_env_num=100, n_evaluator_episode=100)
        main.policy.collect.n_sample = main.policy.learn.batch_size = 8
        main.policy.learn.update(learning_rate=1e-3, lr_scheduler=dict(type='constant'))
        main.policy.eval.evaluator.eval_freq = 5
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=11)
        evaluations = read_json_lines('run/log/evaluator/evaluations.jsonl')
        best = max(e['eval_episode_return'] for e in evaluations)
        assert 0.1 < best < 0.95  # else every wrong way of reading the model would agree

        (tmp_path / 'plain.py').write_text(PLAIN)
        names = runpy.run_path('sums.py')
        (tmp_path / 'problems.json').write_text(json.dumps([[p['prompt'], p['answer']] for p in names['problems']()]))
        out = subprocess.run(
            [sys.executable, 'plain.py', 'run/model/best', 'problems.json'],
            capture_output=True,
            text=True,
            timeout=300
        )
        assert out.returncode == 0, out.stderr
        assert json.loads(out.stdout) == pytest.approx(best)
