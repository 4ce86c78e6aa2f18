"""Tables of errors as answers read them: written by ``--write`` of several benchmarks."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.priors.errors import COLUMNS, Errors


def write_errors(
    path: Path, keys: Sequence[str], errors: Iterable[Errors], written_by: str
) -> None:
    """Write a table of errors.

    Parameters
    ----------
    path
        The file.
    keys
        Names of the columns that predictions are grouped by.
    errors
        Its lines.
    written_by
        The command that writes it, for the comment above.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Errors of predictions; written by: {written_by}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*keys, *COLUMNS])
        for line in errors:
            numbers = line.count, line.median_pct, line.p90_pct, line.bias_pct, line.shared
            writer.writerow([*line.key, *numbers, " ".join(line.machines)])
