from ding_common.output.picture import finish, line_style, new_figure


def test_a_legend_that_covers_no_axes_and_names_lines_that_differ(tmp_path):
    assert len({tuple(line_style(i).values()) for i in range(28)}) == 28
    for names in (['seed 0', 'seed 1'], []):
        figure, panels = new_figure(2)
        for axes in panels:
            for number in range(2):
                axes.plot([0, 250_000], [0, 1], **line_style(number), **(dict(label=names[number]) if names else {}))
        finish(figure, str(tmp_path / 'x.png'))
        assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == names
        for legend in figure.legends:
            assert not any(legend.get_window_extent().overlaps(axes.get_tightbbox()) for axes in panels)
    assert '200 k' in [label.get_text() for label in panels[0].get_xticklabels()]
