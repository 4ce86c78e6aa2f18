"""Logs and tables with cells of no sense."""

from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, NCCL_LOG, OSU, seeds


def logs() -> Iterator[Case]:
    """Logs and tables with cells of no sense."""
    for label, data in {
        "OSU size of 400 digits": OSU.replace(b"1024", b"9" * 400),
        "OSU size of 5,000 digits": OSU.replace(b"1024", b"9" * 5000),
        "OSU time 1e300": OSU.replace(b"12.00", b"1e300"),
        "OSU time 1e-320": OSU.replace(b"12.00", b"1e-320"),
        "nccl rank 1e9": NCCL_LOG.replace(b"Rank  1", b"Rank  1000000000"),
        "nccl size 1e30": NCCL_LOG.replace(b"1048576 ", b"1" + b"0" * 30 + b" "),
        "nccl time": NCCL_LOG.replace(b"30.10", b"1e300"),
        "nccl group": NCCL_LOG.replace(b"Group  0", b"Group  " + b"9" * 5000),
        "nccl device": NCCL_LOG.replace(b"[0x07]", b"[0x" + b"f" * 9000 + b"]"),
        "nccl colours": NCCL_LOG.replace(b"#", b"\x1b[" + b"0;" * 9000 + b"m#"),
        "blanks": b" " * 900_000 + b"x",
        "labels": b"1:" * 300_000,
        "brackets": b"[1,0]" * 150_000,
        "hosts": b"a" * 300_000 + b": # nThread",
        "dates": b"Mon Nov  1 00:00:00 2026" * 20_000,
        "words": b"host-" * 100_000 + b"[0]: 1 1",
    }.items():
        for command in (
            ("calibrate", "--logs", "a.log", *CLUSTER, "--ranks", "8"),
            ("validate", "a.log", *CLUSTER),
        ):
            yield Case(f"log: {label}", command, {"a.log": data})
    for seed in seeds():
        if seed.kind in (
            "calls",
            "requests",
            "pairs",
            "steps",
            "served",
            "placement",
            "imbalance",
            "own-kernels",
        ):
            for label, data in {
                "a long cell": seed.data + b'"' + b"x" * 200_000 + b'"\n',
                "an open quotation": seed.data + b'"' + b"x\n" * 99,
                "a wide row": seed.data + b"1," * 9000 + b"\n",
                "no row": seed.data.split(b"\n")[0] + b"\n",
                "columns twice": seed.data.replace(
                    b"\n", b"," + seed.data.split(b"\n")[0] + b"\n", 1
                ),
                "NUL": seed.data + b"\0\n",
                "a lone return": seed.data.replace(b"\n", b"\r"),
            }.items():
                words = tuple(
                    seed.name + word[1:] if word == "F" or word.startswith("F,") else word
                    for word in seed.commands[0]
                )
                yield Case(f"{seed.kind}: {label}", words, {seed.name: data})
