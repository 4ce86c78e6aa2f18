"""How soon Chakra files are answered, beside ASTRA-sim's time on files of that size.

The files are made here: a step generated from a model's shape, written by ``convert``, and then
without what this project alone writes into them, as any other tool's would be.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.cases import design_points
from benchmarks.measure import Figure, median, process
from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import Study
from experiments.questions.generate import plan_on
from simulator.workload import Workload
from topologies import load_cluster
from traces.chakra.files import read_messages
from traces.chakra.schema import OWN, MetadataMessage, NodeMessage
from traces.chakra.stream import encode_stream
from traces.chakra.write import write_chakra
from traces.generate.generate import generate
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

_CLUSTER = "hgx-h100"
_POINTS = 20
_AS_FAST, _POINT_AS_FAST = 5, 200
"""How many times as fast as ASTRA-sim the first answer is to be, and a further design point."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A job, and how long ASTRA-sim takes for files of its size (s)."""

    name: str
    parallelism: Parallelism
    global_batch: int
    astra: float


_CASES = (
    _Case("16 ranks", Parallelism(tp=8, dp=2), 8, 2.0),
    _Case("64 ranks", Parallelism(tp=8, pp=4, dp=2), 16, 4.0),
    _Case("FSDP, 16 ranks", Parallelism(dp=16, zero=3), 32, 21.0),
)


def first_answers() -> Iterator[Figure]:
    """Time a replay in a process of its own, and design points after it."""
    for case in _CASES:
        workload = _generated(case)
        size = f"{len(workload):,} nodes, {int((workload.call >= 0).sum()):,} of communication"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_chakra(workload, folder)
            without_our_attributes(folder)
            yield from _figures(case, folder, size)


def without_our_attributes(folder: Path) -> None:
    """Take out of Chakra files what no other tool writes."""
    for path in folder.glob("*.et"):
        nodes = [
            NodeMessage.FromString(node.SerializeToString()) for node in read_messages(path).nodes
        ]
        for node in nodes:
            for place in reversed(range(len(node.attr))):
                if node.attr[place].name.startswith(OWN):
                    del node.attr[place]
        metadata: Any = MetadataMessage(version="0.0.4")
        path.write_bytes(encode_stream(metadata, nodes))


def _generated(case: _Case) -> Workload:
    plan = plan_on(
        load_cluster(_CLUSTER),
        model="llama-3.1-405b",
        parallelism=case.parallelism,
        run=Training(micro_batch=1, global_batch=case.global_batch, sequence=4096),
    )
    return generate(plan)[0]


def _figures(case: _Case, folder: Path, size: str) -> Iterator[Figure]:
    command = ["-c", "from experiments.cli.main import main; main()", "replay", str(folder)]
    for engine in ("analytic", "flow"):
        asked = process([*command, "--cluster", _CLUSTER, "--engine", engine, "-o", "json"])
        remark = f"{size}; ASTRA-sim {case.astra:g} s; {asked.processor:.2f} s of processors"
        what = f"Chakra, {case.name}, {engine}"
        yield Figure(what, asked.seconds, "s", case.astra / _AS_FAST, remark=remark)
    scenario = baseline(folder, _CLUSTER, Settings(engine="analytic")).scenario
    points = design_points(_POINTS)
    study = Study(scenario)
    study.steps_at(points)
    numbers = cycle(range(_POINTS))

    def one_more() -> None:
        number = next(numbers)
        study.steps_at({name: factors[number : number + 1] for name, factors in points.items()})

    limit = 1e3 * case.astra / _POINT_AS_FAST
    remark = "analytic, asked one at a time"
    yield Figure(
        "a further design point", 1e3 * median(one_more, _POINTS), "ms", limit, remark=remark
    )
    together = median(lambda: study.steps_at(points), 3) / _POINTS
    remark = f"analytic, each of {_POINTS} asked together"
    yield Figure("a further design point", 1e3 * together, "ms", limit, remark=remark)
