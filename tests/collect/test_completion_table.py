import torch

from ding_grpo.collect.completion_table import best_and_worst, failed, records_of, table
from ding_grpo.collect.group import Collected


def group(number, rewards, texts, fails=()):
    infos = [
        dict(
            index=0,
            kind='',
            prompt='what',
            completion=text,
            reward_parts=dict(a=a, b=None),
            truncated=a == 0,
            failed='oh' if text in fails else None
        ) for text, a in zip(texts, rewards)
    ]
    which = torch.tensor([float(text in fails) for text in texts])
    return Collected(dict(reward=torch.tensor(rewards).unsqueeze(1), failed=which, group_id=number), infos, 1, 0)


def test_best_and_worst_of_each_group():
    groups = [group(0, [0.5, 1., 0.], ['middle', 'best', 'worst']), group(1, [1., 1.], ['same', 'same too'])]
    records = records_of(3, groups, [torch.tensor([0., 1.25, -1.25]), torch.zeros(2)], best_and_worst)
    title, *_, best, worst = table(3, records[:2]).splitlines()
    assert title == 'completions at update 3'
    assert all(part in best for part in ('best', '1.00', '+1.25')) and 'cut' not in best
    assert all(part in worst for part in ('worst', 'cut', 'a 0.00 b -'))
    found = [(r['group'], r['completion'], r['advantage']) for r in records]
    assert found == [(0, 'best', 1.25), (0, 'worst', -1.25), (1, 'same', 0)]
    assert records[0]['reward_parts'] == dict(a=1, b=None) and records[0]['train_iter'] == 3


def test_completions_that_could_not_be_scored_are_neither_best_nor_worst():
    groups = [group(0, [0., -3., -5.], ['odd', 'a', 'b'], ['odd']), group(1, [0.], ['queer'], ['queer'])]
    found = [[r['completion'] for r in records_of(0, groups, [None] * 2, rows)] for rows in (best_and_worst, failed)]
    assert found == [['a', 'b'], ['odd', 'queer']]
