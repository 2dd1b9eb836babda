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
    """A figure of a size in inches, and its axes in one row. ``kwargs`` are those of ``Figure.subplots``."""
    figure = Figure(figsize=(width, height), layout='constrained')
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, **kwargs)


def line_style(number: int) -> dict:
    """Colour and dashes of the line with this number; no two of the first 28 are equal."""
    return dict(color=COLOURS[number % len(COLOURS)], ls=DASHES[number // len(COLOURS) % len(DASHES)])


def finish(figure: Figure, path: str) -> None:
    """Add grids, short tick labels (50 k) and a common legend below the axes, and save as PNG."""
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
