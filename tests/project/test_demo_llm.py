"""benchmarks/demo_llm.py: which runs it makes and which it keeps. None is trained here."""
import importlib
import json
import math
import os
import re
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

BENCHMARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'benchmarks')


class FakeRuns:
    """The program with runs that are made at once, on a machine that can be changed."""

    def __init__(self, module, folder):
        self.module, self.folder, self.made, self.machine = module, folder, [], 'AMD EPYC, float32'

    def measure(self, way, seed, settings, start, answers):
        self.made.append((way, seed))
        problems = self.module.PROBLEMS
        costs = {} if answers is None else dict(problems=problems, letter_counting=0.25, gcd=0.125, chat=-2.5, kl=1.25)
        return dict(
            way=way,
            seed=seed,
            machine=self.machine,
            updates=240,
            seconds=900.0,
            update=3.0,
            gibibytes=4.0,
            curve=[(0, 0.125), (900, 0.625), (901, 0.875)],
            samples=[('What is 1 + 1?', '3', '2')],
            trained=dict(right=0.875, **costs),
            interpolated=dict(right=0.75, **costs)
        )

    def run(self, *options):
        """The runs that these options make."""
        self.made = []
        result = CliRunner().invoke(self.module.main, ['--write', *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return self.made

    def page(self):
        return (self.folder / 'docs' / 'demo_llm.md').read_text()

    def recorded(self):
        results = json.loads((self.folder / 'benchmarks' / 'demo_llm.json').read_text())
        return [(r['way'], r['seed']) for r in results['runs']]


@pytest.fixture
def runs(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module('demo_llm')
    fake = FakeRuns(module, tmp_path)

    def of_start(*args):
        return dict(problems=module.PROBLEMS, letter_counting=0.5, gcd=0.5, chat=-2.0, kl=0.0)

    (tmp_path / 'docs').mkdir()
    (tmp_path / 'benchmarks').mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, 'ROOT', str(tmp_path))
    monkeypatch.setattr(module, 'RECORD', str(tmp_path / 'benchmarks' / 'demo_llm.json'))
    monkeypatch.setattr(module, 'measure', fake.measure)
    monkeypatch.setattr(module, 'build_causal_lm', lambda *args: fake)
    monkeypatch.setattr(fake, 'eval', lambda: fake, raising=False)
    monkeypatch.setattr(module, 'answers_of', lambda start: [])
    monkeypatch.setattr(module, 'costs', of_start)
    monkeypatch.setattr(module, 'kl_of_right_answers', lambda start: 1.5)
    return fake


@pytest.mark.unittest
class TestAdd:

    def test_makes_only_what_the_page_lacks(self, runs):
        assert runs.run('--seeds', '0,1') == [('full', 0), ('full', 1)]
        assert runs.run('--seeds', '0,1,2', '--ways', 'full,lora',
                        '--add') == [('full', 2)] + [('lora', seed) for seed in range(3)]
        assert runs.recorded() == [('full', 0), ('full', 1), ('full', 2), ('lora', 0), ('lora', 1), ('lora', 2)]

    def test_runs_that_are_not_asked_for_stay(self, runs):
        runs.run('--ways', 'kl')
        runs.run('--ways', 'full', '--add')
        assert runs.recorded() == [('full', 0), ('kl', 0)]
        assert len(re.findall(r'\| 12.5% +\| 62.5% +\| 87.5% +\| 75.0% +\|', runs.page())) == 2

    def test_without_it_all_runs_are_made_again(self, runs):
        runs.run('--seeds', '0,1')
        assert runs.run() == [('full', 0)] and runs.recorded() == [('full', 0)]

    def test_runs_of_other_settings_are_made_again(self, runs, monkeypatch):
        runs.run('--ways', 'full,kl')
        monkeypatch.setitem(runs.module.WAYS, 'kl', runs.module.Way('all weights, another KL', 'other'))
        assert runs.run('--ways', 'full,kl', '--add') == [('kl', 0)]

    def test_runs_without_the_costs_that_are_asked_for_are_made_again(self, runs):
        runs.run('--seeds', '0,1', '--elsewhere', '0')
        assert runs.run('--seeds', '0,1', '--elsewhere', '0,1', '--add') == [('full', 1)]

    def test_costs_on_another_number_of_problems_are_measured_again(self, runs, monkeypatch):
        runs.run('--seeds', '0,1', '--elsewhere', '0,1')
        monkeypatch.setattr(runs.module, 'PROBLEMS', 2)
        assert runs.run('--seeds', '0,1', '--elsewhere', '0', '--add') == [('full', 0)]
        assert '| all weights | 0 | 25.0%' in runs.page() and '| all weights | 1 | 25.0%' not in runs.page()

    def test_costs_on_another_number_of_problems_leave_the_page(self, runs, monkeypatch):
        runs.run('--elsewhere', '0')
        monkeypatch.setattr(runs.module, 'PROBLEMS', 2)
        assert runs.run('--add') == [] and 'elsewhere' not in runs.page()

    def test_costs_stay_on_the_page(self, runs):
        runs.run('--elsewhere', '0')
        runs.run('--seeds', '1', '--add')
        assert '| all weights | 0 | 25.0% | 12.5% | -2.50 | 1.250 |' in runs.page()
        assert 'has a KL of 1.500' in ' '.join(runs.page().split())


@pytest.mark.unittest
class TestMachine:

    def test_one(self, runs):
        runs.run('--seeds', '0,1')
        assert 'AMD EPYC, float32; one run at a time.' in runs.page()

    def test_runs_on_two_machines_are_told_apart(self, runs):
        runs.run()
        runs.machine = 'Intel Xeon, bfloat16'
        runs.run('--seeds', '1', '--add')
        runs.run('--seeds', '2', '--add')
        assert 'all weights, seed 0: AMD EPYC, float32. all weights, seeds 1 2: Intel Xeon, bfloat16;' in runs.page()


@pytest.mark.unittest
def test_the_kl_of_right_answers_is_that_of_their_tokens_alone(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    elsewhere = importlib.import_module('elsewhere')
    logits = torch.full((8, 8), -1e9)  # a token is followed by the next one or by token 0; which, depends on the token
    for token in range(7):
        logits[token, [0, token + 1]] = torch.tensor([1 - 0.1 * (token + 1), 0.1 * (token + 1)]).log()
    answers = [[2, 3], [2]]  # after token 1: probabilities 0.2 and 0.3
    problems = SimpleNamespace(checked_problem=lambda i: SimpleNamespace(answer=answers[i]))
    env = SimpleNamespace(problems=problems, encode=lambda problem: [0, 1], encode_answer=lambda answer: answer)
    monkeypatch.setattr(elsewhere, 'environment', lambda: env)
    monkeypatch.setattr(elsewhere, 'OF_KL', 2)
    kl = elsewhere.kl_of_right_answers(lambda ids: SimpleNamespace(logits=logits[ids]))
    assert kl == pytest.approx(-(math.log(0.2) + math.log(0.3) + math.log(0.2)) / 3)
