import pytest
import torch

from ding_grpo.worker.completion_table import CompletionTable


@pytest.mark.unittest
class TestCompletionTable:

    def test_best_and_worst_of_each_group(self, tmp_path):

        def info(text, a):
            return dict(prompt='what', completion=text, reward_parts=dict(a=a), truncated=a == 0)

        infos = [[info('middle', 0.5), info('best', 1.), info('worst', 0.)], [info('same', 1.), info('same too', 1.)]]
        samples = [dict(reward=torch.tensor([[0.5], [1.], [0.]])), dict(reward=torch.tensor([[1.], [1.]]))]
        text = CompletionTable(str(tmp_path / 'x' / 't.txt'), rows=6).write(3, infos, samples)
        rows = text.splitlines()[3:]
        assert 'best' in rows[0] and '1.00' in rows[0] and 'cut' not in rows[0]
        assert 'worst' in rows[1] and 'cut' in rows[1]
        assert 'same' in rows[2] and len(rows) == 3 and 'middle' not in text
        assert (tmp_path / 'x' / 't.txt').read_text().startswith('completions at update 3')

    def test_no_more_rows_than_asked_for(self, tmp_path):
        infos = [[dict(prompt='p', completion=str(i), reward_parts=dict(a=0.), truncated=False)] for i in range(9)]
        samples = [dict(reward=torch.zeros(1, 1))] * 9
        assert len(CompletionTable(str(tmp_path / 't.txt'), rows=2).write(0, infos, samples).splitlines()) == 3 + 2
