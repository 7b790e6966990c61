"""The curves as PNG files for papers; the one part that needs matplotlib."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from vlrl.reporting import curves
from vlrl.reporting.runs import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fbf", "#555555")
"""Okabe and Ito's, told apart by the colour-blind (jfly.uni-koeln.de/color)."""
DPI = 300
SIZE_INCHES = (3.4, 2.4)
"""One column of a paper."""
SMOOTHING = 0.9


def write(all_runs: Sequence[Run], directory: pathlib.Path) -> list[pathlib.Path]:
    """One file a chart, named after its title: each step faint, the smoothed curve over it.

    Raises ValueError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plots needs matplotlib; pip install 'vlrl[report]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in curves.charts(all_runs):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        _draw(figure.add_subplot(), chart, len(all_runs) > 1)
        files.append(directory / f"{re.sub('[^a-z0-9]+', '_', chart.title.lower()).strip('_')}.png")
        figure.savefig(files[-1], dpi=DPI)
    return files


def _draw(axes: Any, chart: curves.Chart, several: bool) -> None:
    for number, series in enumerate(chart.series):
        colour = COLOURS[(series.run if several else number) % len(COLOURS)]
        mean, smooth = ([float("nan") if v is None else v for v in values] for values in _both(series))
        # a dollar sign would begin a formula
        label = series.label.replace("$", r"\$")
        axes.plot(series.steps, mean, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(series.steps, smooth, color=colour, linewidth=1.4, label=label)
    axes.set_xlabel("step", fontsize=8)
    axes.set_title(chart.title.replace("$", r"\$"), fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.series) > 1:
        axes.legend(fontsize=6, frameon=False)


def _both(series: curves.Series) -> tuple[Sequence[float | None], Sequence[float | None]]:
    return series.mean, curves.smoothed(series.mean, SMOOTHING)
