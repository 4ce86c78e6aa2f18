"""The figure of the README: steps predicted for other networks, and the steps measured there.

``python -m experiments.gallery.measured`` draws it anew beside this file.
"""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.questions.validate import validate

PAIRS = Path(__file__).parents[2] / "traces" / "live" / "pairs.csv"


def figure() -> Figure:
    """Draw every recording of ``traces/live``, and on it what ``pairs.csv`` says was measured."""
    return validate(against=[PAIRS]).figure()


if __name__ == "__main__":
    figure().savefig(Path(__file__).with_name("measured.png"), dpi=200)
