"""The figure of the README: the steps predicted for other bandwidths, and those measured there.

``python -m experiments.gallery.measured`` draws it anew beside this file.
"""

import csv
from pathlib import Path

from matplotlib.figure import Figure

from experiments.questions.sweep import sweep

LIVE = Path(__file__).parents[2] / "traces" / "live"
TRACE, RESOURCE = "ddp-cpu-2", "scale_out.bandwidth"
_MS = 1e3


def figure() -> Figure:
    """Draw the sweep of the live recording, and on it what ``pairs.csv`` says was measured."""
    with (LIVE / "pairs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == TRACE]
    factors = [float(row["factor"]) for row in rows]
    drawn = sweep(LIVE / TRACE, LIVE / "net250.yaml", RESOURCE, factors=factors).figure()
    (axes,) = drawn.axes
    axes.errorbar(
        factors,
        [_MS * float(row["measured_step_s"]) for row in rows],
        yerr=[_MS * float(row["measured_mad_s"]) for row in rows],
        fmt="s",
        color="#d9722b",
        markersize=5.5,
        capsize=3,
        zorder=2.5,
        label="measured at that bandwidth",
    )
    axes.legend(frameon=False, fontsize=6.5)
    return drawn


if __name__ == "__main__":
    figure().savefig(Path(__file__).with_name("measured.png"), dpi=300)
