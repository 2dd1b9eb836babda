import torch

from ding_common import read_json_lines
from ding_grpo.collect.completion_table import CompletionTable


def info(text, a, failed=None):
    parts = dict(a=a, b=None)
    return dict(index=0, kind='', prompt='what', completion=text, reward_parts=parts, truncated=a == 0, failed=failed)


def sample(number, rewards, failed):
    reward = torch.tensor(rewards).unsqueeze(1)
    return dict(reward=reward, failed=torch.tensor(failed), group_id=number)


def test_best_and_worst_of_each_group(tmp_path):
    infos = [[info('middle', 0.5), info('best', 1.), info('worst', 0.)], [info('same', 1.), info('same too', 1.)]]
    samples = [sample(0, [0.5, 1., 0.], [0.] * 3), sample(1, [1., 1.], [0.] * 2)]
    advantages = [torch.tensor([0., 1.25, -1.25]), torch.zeros(2)]
    text = CompletionTable(str(tmp_path / 'x' / 't'), rows=2).write(3, infos, samples, advantages)
    best, worst = text.splitlines()[3:]  # as many as asked for; the file of JSON lines has all
    assert all(part in best for part in ('best', '1.00', '+1.25')) and 'cut' not in best
    assert all(part in worst for part in ('worst', 'cut', 'a 0.00 b -')) and 'middle' not in text
    assert (tmp_path / 'x' / 't.txt').read_text().startswith('completions at update 3')
    records = read_json_lines(str(tmp_path / 'x' / 't.jsonl'))
    found = [(r['group'], r['completion'], r['advantage']) for r in records]
    assert found == [(0, 'best', 1.25), (0, 'worst', -1.25), (1, 'same', 0)]
    assert records[0]['reward_parts'] == dict(a=1, b=None) and records[0]['train_iter'] == 3


def test_completions_that_could_not_be_scored_are_neither_best_nor_worst(tmp_path):
    samples = [sample(0, [0., -3., -5.], [1., 0., 0.]), sample(1, [0.], [1.])]
    infos = [[info('odd', None, failed='oh'), info('a', -3.), info('b', -5.)], [info('queer', None, failed='eh')]]
    table = CompletionTable(str(tmp_path / 't'), rows=9)
    table.write(0, infos, samples, [torch.zeros(3), torch.zeros(1)])
    table.write_failed(1, infos, samples, [torch.zeros(3), torch.zeros(1)])
    records = read_json_lines(str(tmp_path / 't.jsonl'))
    found = [(r['train_iter'], r['completion'], r['failed']) for r in records]
    assert found == [(0, 'a', None), (0, 'b', None), (1, 'odd', 'oh'), (1, 'queer', 'eh')]
