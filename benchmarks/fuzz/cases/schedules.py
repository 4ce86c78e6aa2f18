"""Schedules that ask for more than a machine has."""

import json
from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER


def schedules() -> Iterator[Case]:
    """Schedules that ask for more than a machine has."""
    forced = (
        "collective",
        "all_gather",
        *CLUSTER,
        "-n",
        "2",
        "--sizes",
        "1MiB",
        "--algorithm",
        "s.json",
    )
    sound = {
        "kind": "all_gather",
        "algorithm": "x",
        "ranks": 2,
        "chunks": 2,
        "parts": 1,
        "steps": [{"reduce": False, "transfers": [[0, 1, 0, 1], [1, 0, 1, 1]]}],
    }
    for field, value in (
        ("ranks", 2147483647),
        ("chunks", 2147483647),
        ("parts", 2147483647),
        ("ranks", 2**63),
        ("chunks", 10**400),
        ("algorithm", "a" * 90_000),
        ("kind", ""),
        ("ranks", 100_000),
        ("chunks", 100_000_000),
    ):
        yield Case(
            f"schedule: {field} {str(value)[:12]}",
            forced,
            {"s.json": json.dumps({**sound, field: value}).encode()},
        )
    for field, value in (
        ("repeats", 2147483647),
        ("shift", 2147483647),
        ("cycle", 2147483647),
        ("transfers", [[0, 1, 0, 2147483647]]),
        ("transfers", [[0, 2147483647, 0, 1]]),
        ("transfers", [[0, 1, 2147483647, 1]]),
        ("transfers", [[0, 1, -1, 1]]),
        ("transfers", [[0, 1, 0, 0]]),
        ("repeats", 1_000_000),
    ):
        step = {**sound["steps"][0], field: value}
        for more in ({}, {"chunks": 2147483647}):
            yield Case(
                f"schedule: step {field} {value}",
                forced,
                {"s.json": json.dumps({**sound, **more, "steps": [step]}).encode()},
            )
    algo = (
        '<algo name="a" coll="allgather" ngpus="{n}" nchunksperloop="{c}" inplace="0">{gpus}</algo>'
    )
    copied = '<step s="0" type="{t}" srcbuf="i" srcoff="{o}" dstbuf="o" dstoff="0" cnt="{k}" depid="-1" deps="-1"/>'
    gpu = '<gpu id="0"><tb id="0" send="1" recv="-1" chan="0">{s}</tb></gpu><gpu id="1"/>'
    for label, text in {
        "chunks": algo.format(n=2, c=999_999_999, gpus=gpu.format(s="")),
        "cnt": algo.format(n=2, c=2, gpus=gpu.format(s=copied.format(t="cpy", o=0, k=1048576))),
        "off": algo.format(n=2, c=2, gpus=gpu.format(s=copied.format(t="cpy", o=999_999_999, k=1))),
        "gpus": algo.format(n=999_999_999, c=2, gpus=""),
        "many": algo.format(n=5000, c=5000, gpus="".join(f'<gpu id="{n}"/>' for n in range(5000))),
    }.items():
        yield Case(f"MSCCL: {label}", (*forced[:-1], "a.xml"), {"a.xml": text.encode()})
