"""The figure of the README: steps predicted for other networks, and the steps measured there.

``python -m benchmarks.measured_figure`` draws it anew.
"""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.questions.validation.recordings import validate

ROOT = Path(__file__).parents[1]
PAIRS = ROOT / "traces" / "live" / "pairs.csv"


def figure() -> Figure:
    """Draw every recording of ``traces/live``, and on it what ``pairs.csv`` says was measured."""
    return validate(against=[PAIRS]).figure()


if __name__ == "__main__":
    figure().savefig(ROOT / "docs" / "images" / "measured.png", dpi=200)
