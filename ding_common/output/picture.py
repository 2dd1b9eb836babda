"""One style for all pictures: colours that the colour-blind tell apart, short tick labels, legends beside the data."""
from typing import Any, Tuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

# Okabe and Ito's palette, https://jfly.uni-koeln.de/color/, darkest first, without its yellow.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
DASHES = ('-', '--', ':', '-.')
DPI = 120


def new_figure(columns: int, width: float = 9, height: float = 3.8, **kwargs: Any) -> Tuple[Figure, Any]:
    """
    Overview:
        A figure and its axes in one row.
    Arguments:
        - columns (:obj:`int`): Number of axes.
        - width (:obj:`float`): In inches.
        - height (:obj:`float`): In inches.
        - kwargs (:obj:`Any`): Further arguments of ``Figure.subplots``.
    """
    figure = Figure(figsize=(width, height), layout='constrained')
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, **kwargs)


def line_style(number: int) -> dict:
    """
    Overview:
        Colour and dashes of the line with this number; no two of the first 28 are equal.
    """
    return dict(color=COLOURS[number % len(COLOURS)], ls=DASHES[number // len(COLOURS) % len(DASHES)])


def finish(figure: Figure, path: str) -> None:
    """
    Overview:
        Add grids, short tick labels (50 k) and a common legend below the axes, and save.
    Arguments:
        - figure (:obj:`Figure`): From ``new_figure``.
        - path (:obj:`str`): PNG to write.
    """
    handles = {}
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            if max(abs(low), abs(high)) >= 10_000:
                axis.set_major_formatter(EngFormatter())
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    if handles:
        columns = max(1, min(len(handles), int(figure.get_figwidth() * 11 / (8 + max(map(len, handles))))))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc='outside lower center',
            ncols=columns,
            fontsize='small',
            frameon=False
        )
    figure.savefig(path, dpi=DPI)
