"""Wide collectives: one call of thousands of ranks, each in a process of its own.

    python -m benchmarks.wide [--transfer]

Seconds are those of the processors. With ``--transfer`` the reference simulates a ring and a tree
on 1,024 ranks and an all-to-all on 256, transfer by transfer; that takes minutes.
"""

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Figure, process

_TWOFOLD = ("-c", "from experiments.cli.main import main; main()")
_CABLE = "50 GB/s, 1 us"
_BARE = {
    "switch:4096": (4096, 2.0, 500e6),
    "torus:16x16x16": (4096, 10.0, 1e9),
    "dragonfly:33x8x4x4@adaptive": (1056, None, None),
    "fat_tree:16": (1024, None, None),
}
"""Ranks, and the most seconds and bytes that an all-to-all should take."""
_CLUSTERS = {"perlmutter": 1024, "gh200-alps": 1024, "hgx-h100": 1024}
_TRANSFERS = (("all_reduce", 1024, "ring"), ("all_reduce", 1024, "tree"), ("all_to_all", 256, ""))


def wide_calls() -> Iterator[Figure]:
    """Time all-to-alls as the command line does, and say how much memory they take."""
    for spec, (ranks, seconds, peak) in _BARE.items():
        yield from _figures(spec, ranks, ["-c", f"{spec}, {_CABLE}"], (seconds, peak))
    for name, ranks in _CLUSTERS.items():
        yield from _figures(name, ranks, ["--cluster", name], (None, None))


def _figures(
    name: str, ranks: int, where: list[str], targets: tuple[float | None, float | None]
) -> Iterator[Figure]:
    words = ["collective", "all_to_all", "--ranks", str(ranks), "--sizes", "1GiB", *where]
    took = process([*_TWOFOLD, *words], 1)
    seconds, peak = targets
    remark = f"{ranks * (ranks - 1):,} transfers"
    yield Figure(f"all-to-all, {name}", took.processor, "s", seconds, remark=remark)
    most = None if peak is None else peak / 1e6
    yield Figure("its peak memory", took.peak / 1e6, "MB", most)


def by_transfer() -> Iterator[Figure]:
    """Time the reference."""
    for kind, ranks, algorithm in _TRANSFERS:
        words = ["collective", kind, "--ranks", str(ranks), "--sizes", "1GiB"]
        words += ["-c", f"switch:{ranks}, {_CABLE}", "--engine", "simpy"]
        words += ["--algorithm", algorithm] if algorithm else []
        took = process([*_TWOFOLD, *words], 1)
        what = f"transfer by transfer: {algorithm} {kind} of {ranks:,} ranks".replace("  ", " ")
        yield Figure(what, took.processor, "s", remark=f"{took.peak / 1e6:.0f} MB")


def main() -> None:
    """Print what was measured, beside targets."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "", "target", ""):
        table.add_column(column)
    for figure in by_transfer() if "--transfer" in sys.argv else wide_calls():
        target = "" if figure.target is None else f"< {figure.target:.3g} {figure.unit}"
        row = figure.what, f"{figure.value:.3g} {figure.unit}", target, figure.remark
        table.add_row(*row, style="red" if figure.failed else None)
    Console(width=100, highlight=False).print(table)


if __name__ == "__main__":
    main()
