"""One picture for every experiment: the first measure by way, a panel for each cell."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.frame.claims import cells

_COLUMNS = 4
_PANEL = (3.4, 2.2)  # inches


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the medians with the range of the turns into a PNG file."""
    import matplotlib.pyplot as plt  # here: most runs draw nothing

    panels = cells(rows)
    if not panels:
        return
    num_rows = -(-len(panels) // _COLUMNS)
    columns = min(_COLUMNS, len(panels))
    figure, axes = plt.subplots(
        num_rows,
        columns,
        figsize=(_PANEL[0] * columns, _PANEL[1] * num_rows),
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (cell, ways) in zip(axes.flat, panels.items(), strict=False):
        measure = next(iter(next(iter(ways.values()))["runs"]))
        runs = [row["runs"][measure] for row in ways.values()]
        middles = [statistics.median(one) for one in runs]
        spread = [
            [middle - min(one) for middle, one in zip(middles, runs, strict=True)],
            [max(one) - middle for middle, one in zip(middles, runs, strict=True)],
        ]
        axis.barh(list(ways), middles, xerr=spread, color="#4c78a8", ecolor="#333333")
        axis.invert_yaxis()
        axis.set_title(", ".join(map(str, cell)), fontsize=8)
        axis.set_xlabel(measure, fontsize=7)
        axis.tick_params(labelsize=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)
