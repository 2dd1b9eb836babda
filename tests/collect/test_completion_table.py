import pytest
import torch

from ding_common import read_json_lines
from ding_grpo.collect.completion_table import CompletionTable


def info(text, a, failed=None):
    return dict(
        index=0,
        kind='',
        prompt='what',
        completion=text,
        reward_parts=dict(a=a, b=None),
        truncated=a == 0,
        failed=failed,
    )


@pytest.mark.unittest
class TestCompletionTable:

    def test_best_and_worst_of_each_group(self, tmp_path):
        infos = [[info('middle', 0.5), info('best', 1.), info('worst', 0.)], [info('same', 1.), info('same too', 1.)]]
        samples = [
            dict(reward=torch.tensor([[0.5], [1.], [0.]]), failed=torch.zeros(3), group_id=0),
            dict(reward=torch.tensor([[1.], [1.]]), failed=torch.zeros(2), group_id=1)
        ]
        advantages = [torch.tensor([0., 1.25, -1.25]), torch.zeros(2)]
        text = CompletionTable(str(tmp_path / 'x' / 't'), rows=2).write(3, infos, samples, advantages)
        rows = text.splitlines()[3:]
        assert len(rows) == 2  # as many as asked for; the file of JSON lines has all
        assert 'best' in rows[0] and '1.00' in rows[0] and '+1.25' in rows[0] and 'cut' not in rows[0]
        assert 'worst' in rows[1] and 'cut' in rows[1] and 'a 0.00 b -' in rows[1] and 'middle' not in text
        assert (tmp_path / 'x' / 't.txt').read_text().startswith('completions at update 3')
        records = read_json_lines(str(tmp_path / 'x' / 't.jsonl'))
        assert [(r['group'], r['completion'], r['advantage'])
                for r in records] == [(0, 'best', 1.25), (0, 'worst', -1.25), (1, 'same', 0)]
        assert records[0]['reward_parts'] == dict(a=1, b=None) and records[0]['train_iter'] == 3

    def test_completions_that_could_not_be_scored_are_neither_best_nor_worst(self, tmp_path):
        reward = torch.tensor([[0.], [-3.], [-5.]])
        samples = [dict(reward=reward, failed=torch.tensor([1., 0., 0.]), group_id=0)]
        samples.append(dict(reward=torch.zeros(1, 1), failed=torch.ones(1), group_id=1))
        infos = [[info('odd', None, failed='oh'), info('a', -3.), info('b', -5.)], [info('queer', None, failed='eh')]]
        table = CompletionTable(str(tmp_path / 't'), rows=9)
        table.write(0, infos, samples, [torch.zeros(3), torch.zeros(1)])
        table.write_failed(1, infos, samples, [torch.zeros(3), torch.zeros(1)])
        records = read_json_lines(str(tmp_path / 't.jsonl'))
        assert [(r['train_iter'], r['completion'], r['failed'])
                for r in records] == [(0, 'a', None), (0, 'b', None), (1, 'odd', 'oh'), (1, 'queer', 'eh')]
