import pytest

from ding_common import append_json
from ding_grpo.instruments.shadow_picture import draw_shadow, noise_scales
from tests.runs import figures


@pytest.mark.unittest
class TestPicture:

    def test_each_panel_has_its_own_measurements(self, tmp_path, monkeypatch):
        found = figures(monkeypatch)
        for i in range(12):
            shares = {f'shadow/{name}/first': 0.1 * n for n, name in enumerate(('tokens', 'in_use', 'dapo'))}
            losses = {'shadow/in_use/norm': 2., 'shadow/dapo/norm': 4. + i, 'shadow/dapo/cosine': i / 100}
            noise = {'noise/table/variance': 3. * i, 'noise/table/signal': 2.}
            append_json(str(tmp_path / 'log/learner/metrics.jsonl'), {'train_iter': i, **shares, **losses, **noise})
        assert draw_shadow(str(tmp_path), str(tmp_path / 'shadow.png')) and (tmp_path / 'shadow.png').exists()
        panels = found[0].axes
        cosine, norm, share, noise = (panel.lines for panel in panels)
        assert [line.get_label() for line in cosine] == ['dapo']
        assert list(cosine[0].get_ydata()) == pytest.approx([i / 100 for i in range(12)])
        assert list(norm[0].get_ydata()) == pytest.approx([2 + i / 2 for i in range(12)])
        first = next(line for line in share if line.get_label() == 'share: first')
        assert list(first.get_xdata()) == pytest.approx([0, 0.1, 0.2])
        assert [label.get_text() for label in panels[2].get_yticklabels()] == ['tokens', 'in_use', 'dapo']
        table = next(line for line in noise if line.get_label() == 'noise: table')
        assert list(table.get_xdata()) == [9, 10, 11] and list(table.get_ydata()) == pytest.approx([6.75, 8.25, 9.75])

    def test_nothing_without_shadow_losses(self, tmp_path):
        append_json(str(tmp_path / 'log/learner/metrics.jsonl'), {'train_iter': 0, 'noise/table/variance': 4.})
        assert not draw_shadow(str(tmp_path), str(tmp_path / 'shadow.png')) and not (tmp_path / 'shadow.png').exists()

    def test_noise_is_a_quotient_of_means(self):
        """The quotients are 1 / 0.1 = 10 nine times and 1 / 1 once; the mean signal is 0.19. One update has no
        measurement, and a window whose mean signal is negative has no value."""
        signals = [0.1] * 5 + [None] + [0.1] * 4 + [1., -50.]
        records = [
            {'train_iter': i, **({} if s is None else {'noise/weights/signal': s, 'noise/weights/variance': 1.})}
            for i, s in enumerate(signals)
        ]  # yapf: disable
        updates, scales = noise_scales(records, 'weights')
        assert updates == [10] and scales == pytest.approx([1 / 0.19])
        assert noise_scales(records, 'table') == ([], [])
