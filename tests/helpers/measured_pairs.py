"""What was measured of one recorded program of ``traces/live``: a table of a few rows."""

import csv

from helpers.places import ROOT

LIVE = ROOT / "traces" / "live"


def pairs_of(trace, folder):
    """Write the rows of ``pairs.csv`` of one recording into a folder; return file and rows."""
    with (LIVE / "pairs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == trace]
    path = folder / "pairs.csv"
    with path.open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(
            {**row, "trace": LIVE / row["trace"], "cluster": LIVE / row["cluster"]} for row in rows
        )
    return path, rows
