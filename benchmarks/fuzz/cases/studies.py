"""Studies: state that somebody else wrote, and fields of no sense."""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz.cases.whole import fifo, folder, zero
from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import STUDY, changed


def studies() -> Iterator[Case]:
    """State of studies that somebody else wrote."""
    ask = ("study", "study.yaml", "-d", "out", "--no-cache")
    for label, files in {
        "a pipe as lock": {"out/.lock": fifo},
        "a device as lock": {"out/.lock": zero},
        "a directory as lock": {"out/.lock": folder},
        "a link as results": {
            "elsewhere": folder,
            "out/results": lambda path: path.symlink_to("../elsewhere"),
        },
        "a file as results": {"out/results": b"x"},
        "an index of text": {"out/index.sqlite": b"x" * 4096},
        "an index as pipe": {"out/index.sqlite": fifo},
        "a pipe as study": {"out/study.yaml": fifo},
        "a link as lock": {
            "victim": b"kept",
            "out/.lock": lambda path: path.symlink_to("../victim"),
        },
    }.items():
        yield Case(f"study: {label}", ask, {"study.yaml": STUDY, "out/study.yaml": STUDY, **files})
        yield Case(f"study read: {label}", ("study", "out"), {"out/study.yaml": STUDY, **files})
    for change in (
        (b"steps: 3", b"steps: 1000000000"),
        (b"75 GB/s", b"1e-320 B/s"),
        (b"2.4 TB/s", b"1e300 TB/s"),
        (b"steps: 3", b"steps: 0"),
        (b"dgx-a100", b"/etc/passwd"),
        (b"dgx-a100", b"/dev/zero"),
        (b"name: links", b"name: " + b"x" * 9000),
        (b"steps: 3", b"steps: 100000000000000000000"),
        (b"confirm: none", b"confirm: none\nconstraints: ['" + b"(" * 5000 + b"']"),
        (b"confirm: none", b"confirm: none\nconstraints: ['9**9**9**9 > 1']"),
        (b"confirm: none", b"confirm: none\nconstraints: ['__import__(\"os\")']"),
        (b"confirm: none", b"confirm: none\nsampler: {points: 1000000000}"),
    ):
        yield Case(f"study: {change[1][:40]!r}", ask, {"study.yaml": STUDY.replace(*change)})


def _index(*statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.sqlite")
        with sqlite3.connect(path) as base:
            for statement in statements:
                base.executescript(statement)
        base.close()
        return path.read_bytes()


def more_studies() -> Iterator[Case]:
    """Yield searches, dimensions, constraints, and databases of no sense."""
    ask = ("study", "study.yaml", "-d", "out", "--no-cache")
    for label, change in {
        "a sampler": ("confirm: none", "confirm: none\nsearch: {method: tpe, trials: 1000000}"),
        "trials 0": ("confirm: none", "confirm: none\nsearch: {method: random, trials: 0}"),
        "seed 2**40": (
            "confirm: none",
            "confirm: none\nsearch: {method: random, trials: 3, seed: 1099511627776}",
        ),
        "bisect": (
            "confirm: none",
            "confirm: none\nsearch: {method: bisect, over: zzz, loss: 5 %}",
        ),
        "loss 1e300": (
            "confirm: none",
            "confirm: none\nsearch: {method: bisect, over: scale_up.bandwidth, loss: 1e300}",
        ),
        "an objective of nobody": ("step_s: min", "zzz: min"),
        "an objective of no sense": ("step_s: min", "step_s: sideways"),
        "a quantile": ("step_s: min", "step_s: {min: p9999}"),
        "a dimension of nobody": ("scale_up.bandwidth: {", "zzz.bandwidth: {"),
        "a dimension backwards": ("75 GB/s, 2.4 TB/s", "2.4 TB/s, 75 GB/s"),
        "a dimension of one": ("75 GB/s, 2.4 TB/s", "75 GB/s, 75 GB/s"),
        "a dimension of time": ("75 GB/s", "75 us"),
        "a list of 100,000": (
            "{log: [75 GB/s, 2.4 TB/s], steps: 3}",
            "[" + ", ".join(["75 GB/s"] * 50_000) + "]",
        ),
        "many dimensions": (
            "objectives:",
            "".join(f"  plan.x{n}: [1, 2]\n" for n in range(500)) + "objectives:",
        ),
        "a constraint that divides by 0": (
            "confirm: none",
            "confirm: none\nconstraints: ['step_s / 0 < 1']",
        ),
        "a constraint of text": ("confirm: none", "confirm: none\nconstraints: ['\"a\" < 1']"),
        "a constraint of attributes": (
            "confirm: none",
            "confirm: none\nconstraints: ['step_s.__class__ < 1']",
        ),
        "a constraint of a call": ("confirm: none", "confirm: none\nconstraints: ['open(1) < 1']"),
        "a constraint of powers": (
            "confirm: none",
            "confirm: none\nconstraints: ['2 ** 2 ** 2 ** 40 > step_s']",
        ),
        "a constraint of 200,000": (
            "confirm: none",
            "confirm: none\nconstraints: ['" + "1+" * 100_000 + "1 < step_s']",
        ),
        "a constraint of signs": (
            "confirm: none",
            "confirm: none\nconstraints: ['" + "-" * 50_000 + "1 < step_s']",
        ),
        "a weight of 0": ("workloads: [{", "workloads: [{weight: 0, "),
        "a weight of 1e308": ("workloads: [{", "workloads: [{weight: 1.0e+308, "),
        "tokens 10**30": (
            "workloads: [{",
            "workloads: [{tokens: 1000000000000000000000000000000, ",
        ),
        "tokens 1e18": ("workloads: [{", "workloads: [{tokens: 1000000000000000000, "),
        "settings of nobody": ("confirm: none", "confirm: none\nsettings: {zzz: 1}"),
        "settings of no sense": ("confirm: none", "confirm: none\nsettings: {nodes: -1}"),
        "what_ifs": (
            "confirm: none",
            "confirm: none\nsettings: {what_ifs: ['" + "*" * 9000 + " x2']}",
        ),
    }.items():
        data = changed(STUDY, *change)
        yield Case(f"study: {label}", ask, {"study.yaml": data})
    for label, data in {
        "another format": _index("PRAGMA user_version = 99; CREATE TABLE answers(a)"),
        "wrong columns": _index("CREATE TABLE answers(key TEXT)", "PRAGMA user_version = 2"),
        "a view": _index(
            "CREATE VIEW answers AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n"
        ),
        "a trigger": _index(
            "CREATE TABLE t(a); CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT load_extension('x'); END"
        ),
        "zeros": bytes(90_000),
        "a head alone": b"SQLite format 3\0",
    }.items():
        for name in ("index.sqlite", "answers.sqlite", "points.sqlite"):
            yield Case(
                f"study: {name}, {label}",
                ask,
                {"study.yaml": STUDY, "out/study.yaml": STUDY, f"out/{name}": data},
            )
            yield Case(
                f"study read: {name}, {label}",
                ("study", "out"),
                {"out/study.yaml": STUDY, f"out/{name}": data},
            )
    for label, files in {
        "results of text": {
            "out/results/0.json": b"{",
            "out/results.csv": b"x",
            "out/results.parquet": b"PAR1",
        },
        "drawn of no sense": {"out/drawn.json": b'{"a": ' * 500},
        "origin of no sense": {"out/origin.txt": b"/etc\0/passwd"},
        "origin of 900,000": {"out/origin.txt": b"/a" * 450_000},
        "provenance": {"out/provenance.json": b"[" * 9000},
    }.items():
        yield Case(f"study: {label}", ask, {"study.yaml": STUDY, "out/study.yaml": STUDY, **files})
        yield Case(f"study read: {label}", ("study", "out"), {"out/study.yaml": STUDY, **files})
