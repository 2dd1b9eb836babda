import numpy as np
import pytest
from matplotlib.image import imread

from ding_common import append_json
from ding_grpo.logs.curve import draw_curves


@pytest.mark.unittest
class TestCurve:

    def test_draws_what_the_run_wrote(self, tmp_path):
        for i in range(5):
            append_json(str(tmp_path / 'log/learner/metrics.jsonl'), dict(train_iter=i, reward_mean=i / 5))
            append_json(str(tmp_path / 'log/evaluator/evaluations.jsonl'), dict(train_iter=i, eval_episode_return=1))
        draw_curves({'a': str(tmp_path)}, str(tmp_path / 'with.png'))
        draw_curves({'a': str(tmp_path / 'nothing')}, str(tmp_path / 'without.png'))
        with_data, without = imread(tmp_path / 'with.png'), imread(tmp_path / 'without.png')
        assert with_data.shape == without.shape
        middle = with_data.shape[1] // 2
        for half in (slice(0, middle), slice(middle, None)):  # learning on the left, evaluation on the right
            changed = (with_data[60:-60, half] != without[60:-60, half]).any(-1)
            assert changed.sum() > 500

    def test_without_rewards_the_evaluations_alone(self, tmp_path):
        """DI-engine's own policies do not report the reward; an empty panel would look like a failed run."""
        append_json(str(tmp_path / 'log/learner/metrics.jsonl'), dict(train_iter=0, total_loss=1.))
        for i in range(5):
            append_json(str(tmp_path / 'log/evaluator/evaluations.jsonl'), dict(train_iter=i, eval_episode_return=i))
        draw_curves({'a': str(tmp_path)}, str(tmp_path / 'one.png'))
        picture = imread(tmp_path / 'one.png')[60:-60, 80:-40, :3]
        quarters = np.array_split((picture.max(-1) - picture.min(-1) > 0.3).any(0), 4)  # of the width: coloured columns
        assert all(part.mean() > 0.3 for part in quarters)
