import pytest

from ding_common import append_json
from ding_grpo.instruments.shadow_picture import draw_shadow, noise_scales
from tests.runs import figures


def test_each_panel_has_its_own_measurements(tmp_path, monkeypatch):
    found, metrics, path = figures(monkeypatch), tmp_path / 'log/learner/metrics.jsonl', tmp_path / 'shadow.png'
    append_json(str(metrics), {'train_iter': 0, 'noise/table/variance': 4.})
    assert not draw_shadow(str(tmp_path), str(path)) and not path.exists()  # nothing without shadow losses
    for i in range(3):
        losses = {'shadow/in_use/norm': 2., 'shadow/dapo/norm': 4. + i, 'shadow/dapo/cosine': i / 100}
        append_json(str(metrics), {'train_iter': i, **losses})
    assert draw_shadow(str(tmp_path), str(path)) and path.exists()
    cosine, norm, *_ = (panel.lines for panel in found[0].axes)
    assert [line.get_label() for line in cosine] == ['dapo']
    assert list(cosine[0].get_ydata()) == pytest.approx([0, 0.01, 0.02])
    assert list(norm[0].get_ydata()) == pytest.approx([2, 2.5, 3])


def test_noise_is_a_quotient_of_means():
    """The quotients are 1 / 0.1 = 10 nine times and 1 / 1 once; the mean signal is 0.19. One update has no measurement,
    and a window whose mean signal is negative has no value."""
    signals = [0.1] * 5 + [None] + [0.1] * 4 + [1., -50.]
    records = [
        {'train_iter': i, **({} if s is None else {'noise/weights/signal': s, 'noise/weights/variance': 1.})}
        for i, s in enumerate(signals)
    ]  # yapf: disable
    updates, scales = noise_scales(records, 'weights')
    assert updates == [10] and scales == pytest.approx([1 / 0.19])
    assert noise_scales(records, 'table') == ([], [])
