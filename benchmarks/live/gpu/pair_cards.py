"""Pair what two cards recorded: ``python -m benchmarks.live.gpu.pair_cards OUT A B CARD_A CARD_B``.

``A`` and ``B`` are folders that ``python -m benchmarks.live.gpu FOLDER --part cards`` wrote on two
cards, ``CARD_A`` and ``CARD_B`` clusters of the catalogue with these. ``OUT`` gets the recordings
whose steps are within 3 % of those without a profiler, the folder's name before the program's, and
``pairs.csv``: each of them on its own card and on the other.
"""

import csv
import shutil
import sys
from pathlib import Path

from benchmarks.live.gpu import MOST_LONGER, PAIR_COLUMNS


def main() -> None:
    """Copy the recordings that are kept, and write the table."""
    out, folders, cards = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:4]], sys.argv[4:6]
    tables = [_steps(folder) for folder in folders]
    rows = []
    for own, folder in enumerate(folders):
        other = 1 - own
        for trace, step in tables[own].items():
            there = tables[other].get(trace)
            off = abs(float(step["profiled_s"]) / float(step["step_s"]) - 1)
            if there is None or off > MOST_LONGER:
                continue
            name = f"{folder.name}-{trace}"
            shutil.copyfile(folder / trace, out / name)
            for what_if, measured in (("", step), (f"accelerator {cards[other]}", there)):
                measures = (measured["step_s"], measured["mad_s"], "20", "latency")
                rows.append((name, f"{folder.name}.yaml", what_if, *measures))
    with (out / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(PAIR_COLUMNS)
        writer.writerows(rows)


def _steps(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "cards.csv").open(newline="") as file:
        return {row["trace"]: row for row in csv.DictReader(file)}


if __name__ == "__main__":
    main()
