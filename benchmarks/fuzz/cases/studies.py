"""State of studies that somebody else wrote."""

from collections.abc import Iterator

from benchmarks.fuzz.cases.whole import fifo, folder, zero
from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import STUDY


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
