import pytest

from ding_common import append_json
from ding_grpo.logs.curve import draw_curves
from tests.runs import figures


@pytest.mark.parametrize(
    'metrics, lines',
    [
        (dict(reward_mean=0.5), [[0.5] * 3, [0, 1, 2]]),
        # DI-engine's own policies do not report the reward; an empty panel would look like a failed run
        (dict(total_loss=1.), [[0, 1, 2]]),
    ]
)
def test_draws_what_the_run_wrote(tmp_path, monkeypatch, metrics, lines):
    for i in range(3):
        append_json(str(tmp_path / 'log/learner/metrics.jsonl'), dict(metrics, train_iter=i))
        append_json(str(tmp_path / 'log/evaluator/evaluations.jsonl'), dict(train_iter=i, eval_episode_return=i))
    found = figures(monkeypatch)
    draw_curves({'a': str(tmp_path)}, str(tmp_path / 'curve.png'))
    assert [panel.lines[0].get_ydata().tolist() for panel in found[0].axes] == lines
    assert (tmp_path / 'curve.png').read_bytes()[:4] == b'\x89PNG'
