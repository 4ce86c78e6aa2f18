"""How soon Chakra files are answered, beside what ASTRA-sim took on the same files.

The files are made here: a step generated from a model's shape, written by ``convert``, and then
without what this project alone writes into them, as any other tool's would be. ASTRA-sim 2 was
built and run on such files in one session on one machine, with this project beside it; it is not
run here. Generation may write a few nodes more or less since then: both counts are printed, and
beyond one in two hundred nothing is compared. A second is not a second everywhere, so its times
are scaled by what Python with NumPy takes to start, which was measured there and is measured here
beside every case.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

from benchmarks.cases import design_points
from benchmarks.measure import Figure, Process, median, process
from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import DesignPoints
from experiments.questions.generate import plan_on
from experiments.scenario.resources import improve
from simulator.support.errors import TwofoldError
from simulator.workload import Workload
from topologies import load_cluster
from traces.chakra.files import read_messages
from traces.chakra.schema import OWN, MetadataMessage, NodeMessage
from traces.chakra.stream import encode_stream
from traces.chakra.write import write_chakra
from traces.generate.generate import generate
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

ASTRA = "ASTRA-sim 2 (518bd51, analytical back ends 599a047, -O3)"
"""What ran on these files, with the times and memory below: best of 3 to 5 processes, of one at 256
and 1,024 ranks; 2 cores, nothing else running."""
_NUMPY_THERE = 0.1
"""What ``python -c "import numpy"`` took on the machine of those runs (s)."""
_POINTS = 20
_FURTHER = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A job; nodes of its files; ASTRA-sim's times (s) and memory (MB) without and with contention.

    ``ahead`` is how many times as fast as that the first answer with contention is to be. Where
    the time with contention is unknown that without stands for it, which is shorter. ``further``
    is the processor time that a further point under contention may take (s).
    """

    name: str
    parallelism: Parallelism
    global_batch: int
    nodes: int
    unaware: float
    aware: float | None
    memory: float
    ahead: float
    further: float | None = None


CASES = (
    Case("FSDP, 16 ranks", Parallelism(dp=16, zero=3), 32, 28_560, 0.82, 1.07, 49, 1 / 1.3, 0.06),
    Case("16 ranks", Parallelism(tp=8, dp=2), 8, 83_344, 2.59, 3.09, 123, 2, 0.08),
    Case("64 ranks", Parallelism(tp=8, pp=4, dp=2), 16, 166_208, 6.62, 8.78, 236, 2, 0.15),
    Case("256 ranks", Parallelism(tp=8, pp=4, dp=8), 64, 665_856, 41.1, 55.1, 933, 8),
    Case("1,024 ranks", Parallelism(tp=8, pp=16, dp=8), 64, 690_176, 59.8, None, 1645, 8, 1.0),
)
SWEEPS = {"FSDP, 16 ranks": 21.4, "16 ranks": 63.0}
"""Processor time of 20 bandwidths there, a process each, without contention (s)."""
_UTILITIES = {"64 ranks": 2.0}
"""Processor time that all utilities of doubling may take, with contention, as a process (s)."""
_UNLIKE = 1 / 200
"""Share of nodes by which files may differ from those that ASTRA-sim ran on."""
_SWEEP_AHEAD = {"analytic": 25, "flow": 10}
"""How many times as fast 20 bandwidths are to be."""

SWITCH = """\
name: {ranks} ports
description: one switch, as ASTRA-sim was given it
accelerator: {{name: any}}
ranks_per_node: {ranks}
nodes: 1
scale_up: {{topology: switch, size: {ranks}, bandwidth: 53.6870912 GB/s, latency: 1.01 us}}
library: {{name: none}}
"""
"""50 * 2**30 B/s a port, two hops of 500 ns, and what its endpoints add."""


def first_answers() -> Iterator[Figure]:
    """Time answers in processes of their own, and design points after them."""
    for case in CASES:
        workload = generated(case)
        if abs(len(workload) / case.nodes - 1) > _UNLIKE:
            raise TwofoldError(
                f"{case.name}: generate makes {len(workload):,} nodes, and ASTRA-sim ran on "
                f"{case.nodes:,}: the figures cannot be compared"
            )
        nodes = f"{case.nodes:,} nodes"
        if len(workload) != case.nodes:
            nodes = f"{len(workload):,} nodes here, {case.nodes:,} there"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "files"
            folder.mkdir()
            write_chakra(workload, folder)
            without_our_attributes(folder)
            cluster = Path(name) / "switch.yaml"
            cluster.write_text(SWITCH.format(ranks=workload.job_ranks))
            del workload
            yield from _answers(case, nodes, folder, cluster)
            yield from _points(case, folder, cluster)
            yield from _contended_points(case, folder, cluster)


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


def generated(case: Case) -> Workload:
    """Make the step that the files hold."""
    plan = plan_on(
        load_cluster("hgx-h100"),
        model="llama-3.1-405b",
        parallelism=case.parallelism,
        run=Training(micro_batch=1, global_batch=case.global_batch, sequence=4096),
    )
    return generate(plan)[0]


def slower() -> float:
    """How many times as long as there a process takes here, now."""
    return process(["-c", "import numpy"], 5).seconds / _NUMPY_THERE


def _command(*words: str) -> Process:
    """Answer in a process that reads the files, as ASTRA-sim does."""
    return process(["-c", "from experiments.cli.main import main; main()", *words, "--no-cache"])


def _answers(case: Case, nodes: str, folder: Path, cluster: Path) -> Iterator[Figure]:
    """Give first answers and a sweep, in times of ASTRA-sim on this machine."""
    asked = ["--cluster", str(cluster), "--algorithm", "all_reduce=ring", "-o", "json"]
    theirs = {"analytic": case.unaware, "flow": case.aware or case.unaware}
    for engine, seconds in theirs.items():
        scale = slower()
        took = _command("replay", str(folder), *asked, "--engine", engine)
        yield Figure(
            f"Chakra, {case.name}, {engine}",
            seconds * scale / took.seconds,
            "x ASTRA-sim",
            case.ahead if engine == "flow" else None,
            most=False,
            remark=f"{nodes}; {took.seconds:.2f} s and {took.peak / 1e6:.0f} MB here, "
            f"{seconds:g} s and {case.memory:g} MB there, scaled by {scale:.2f}",
        )
    if case.name in _UTILITIES:
        took = _command("utility", str(folder), *asked)
        remark = f"{took.seconds:.2f} s as a whole process, {took.peak / 1e6:.0f} MB"
        most = _UTILITIES[case.name]
        yield Figure("its utilities, with contention", took.processor, "s", most, remark=remark)
    if case.name not in SWEEPS:
        return
    factors = ",".join(f"{1.1**power:.4f}" for power in range(_POINTS))
    sweep = ["--resource", "scale_up.bandwidth", "--factors", factors]
    for engine, ahead in _SWEEP_AHEAD.items():
        scale = slower()
        took = _command("sweep", str(folder), *asked, *sweep, "--engine", engine)
        ratio = SWEEPS[case.name] * scale / took.seconds
        remark = f"{took.seconds:.2f} s here, {SWEEPS[case.name]:g} s there without contention"
        what = f"its {_POINTS} bandwidths, {engine}"
        yield Figure(what, ratio, "x ASTRA-sim", ahead, most=False, remark=remark)


def _points(case: Case, folder: Path, cluster: Path) -> Iterator[Figure]:
    scenario = baseline(folder, str(cluster), Settings(engine="analytic")).scenario
    points = {"scale_up.bandwidth": design_points(_POINTS)["scale_up.bandwidth"]}
    design = DesignPoints(scenario)
    design.steps_at(points)
    numbers = cycle(range(_POINTS))

    def one_more() -> None:
        number = next(numbers)
        design.steps_at({name: factors[number : number + 1] for name, factors in points.items()})

    yield Figure(
        "a further design point",
        1e3 * median(one_more, _POINTS),
        "ms",
        remark="analytic, asked one at a time",
    )
    together = median(lambda: design.steps_at(points), 3) / _POINTS
    remark = f"analytic, each of {_POINTS} asked together"
    yield Figure("a further design point", 1e3 * together, "ms", remark=remark)


def _contended_points(case: Case, folder: Path, cluster: Path) -> Iterator[Figure]:
    """Time further bandwidths under contention: the network built, calls laid, all simulated."""
    scenario = baseline(folder, str(cluster), Settings(engine="flow")).scenario
    numbers = count(1)

    def one_more() -> None:
        improve(scenario, "scale_up.bandwidth", 1 + next(numbers) / 10).run()

    one_more()
    wall, used = [], []
    for _ in range(_FURTHER):
        begun, busy = time.perf_counter(), time.process_time()
        one_more()
        wall.append(time.perf_counter() - begun)
        used.append(time.process_time() - busy)
    most = None if case.further is None else 1e3 * case.further
    remark = f"flow, of processors; {1e3 * statistics.median(wall):.0f} ms by the clock"
    took = 1e3 * statistics.median(used)
    yield Figure("a further point, contention", took, "ms", most, remark=remark)
