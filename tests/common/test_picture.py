import pytest
from matplotlib.image import imread

from ding_common.output.picture import COLOURS, finish, line_style, new_figure


@pytest.mark.unittest
class TestPicture:

    def test_no_two_lines_look_alike(self):
        styles = [tuple(line_style(i).values()) for i in range(28)]
        assert len(set(styles)) == 28 and len({c for c, _ in styles[:7]}) == len(COLOURS) == 7

    def test_one_legend_that_covers_no_axes_and_short_labels(self, tmp_path):
        figure, panels = new_figure(2)
        for number in range(3):
            for axes in panels:
                axes.plot([0, 250_000], [0, 1], label=f'seed {number}', **line_style(number))
        finish(figure, str(tmp_path / 'x.png'))
        assert imread(str(tmp_path / 'x.png')).shape[1] == 9 * 120
        legend, = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ['seed 0', 'seed 1', 'seed 2']
        box = legend.get_window_extent()
        for axes in panels:
            assert not box.overlaps(axes.get_tightbbox())
            labels = [label.get_text() for label in axes.get_xticklabels()]
            assert '200 k' in labels and len(labels) <= 9

    def test_nothing_to_name(self, tmp_path):
        figure, axes = new_figure(1)
        axes.plot([0, 1], [0, 1])
        finish(figure, str(tmp_path / 'x.png'))
        assert figure.legends == []
