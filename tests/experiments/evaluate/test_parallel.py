"""Several processes answer as one does: same values, same order, same error."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from experiments.baseline import Settings
from experiments.evaluate.parallel import map_scenarios, outcome
from experiments.points.sweep import sweep
from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario
from helpers.asked import deadlocked, depth_limit, killed
from helpers.places import ROOT
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support import workers as processes
from simulator.support.errors import DeadlockError, WhatIfError
from simulator.support.limits import FORESEEN, LIMITS, parse_limits
from simulator.workload import What
from topologies import load_cluster

SAMPLE = ROOT / "traces" / "samples" / "gpu-dp2-tp4"


def job(ranks=8, layers=4):
    builder = WorkloadBuilder(job_ranks=ranks)
    group = builder.group(tuple(range(ranks)), "dp")
    last = {}
    for layer in range(layers):
        call = builder.call(CallRow("all_reduce", group, layer, 1e7 * (1 + layer)))
        for rank in range(ranks):
            for what, length, of in (
                (What.COMPUTE, 1e-4 * (1 + rank), -1),
                (What.COLLECTIVE, 0.0, call),
            ):
                op = builder.op(what, rank=rank, lane="s", name="op", duration=length, call=of)
                if rank in last:
                    builder.edge(last[rank], op)
                last[rank] = op
    return builder.build()


@pytest.fixture(scope="module")
def scenarios():
    base = Scenario(job(), load_cluster("dgx-a100"))
    asked = [("compute", 2), ("scale_up.bandwidth", 2), ("compute", 4), ("scale_up.latency", 3)]
    return [(f"{name} x{factor}", improve(base, name, factor)) for name, factor in asked]


def test_two_processes_answer_to_the_bit_as_one_does(scenarios):
    alone = map_scenarios(scenarios, outcome)
    assert len({one.makespan for one in alone}) == len(scenarios)
    # By their texts, which give floats to the bit: NaN, what was not asked for, equals nothing.
    assert repr(map_scenarios(scenarios, outcome, workers=2)) == repr(alone)
    assert not multiprocessing.active_children()


def test_columns_are_written_once_and_not_pickled(scenarios, tmp_path):
    graph, places = processes._written([one for _, one in scenarios], tmp_path / "columns")
    workload = scenarios[0][1].workload
    own = sum(one.workload.duration.nbytes for _, one in scenarios)
    assert workload.rank.nbytes + own <= sum(place.end - place.begin for place in places)
    assert all(place.begin < place.end for place in places)
    assert (tmp_path / "columns").stat().st_size < 4 * sum(
        getattr(workload, name).nbytes
        for name in ("what", "rank", "lane", "name", "call", "duration", "ready")
    ) + 64 * len(places) + workload.measured_start.nbytes * 8
    larger = [(name, replace(one, workload=job(layers=400))) for name, one in scenarios[:1]]
    of_larger = processes._written([one for _, one in larger], tmp_path / "more")[0]
    assert len(of_larger) < len(graph) + 20_000


def test_columns_that_a_process_maps_are_of_the_type_they_were_and_its_own(
    scenarios, tmp_path, monkeypatch
):
    """A read-only array is another type to Numba: every worker would compile the loops anew."""
    monkeypatch.setattr(processes, "_mapped", {})
    fixed = job()
    fixed.rank.setflags(write=False)
    given = [scenarios[1][1], replace(scenarios[1][1], workload=fixed), scenarios[3][1]]
    graph, places = processes._written(given, tmp_path / "columns")
    kept = (tmp_path / "columns").read_bytes()
    processes._attach(graph, tmp_path / "columns", places)
    first, second, third = (one.workload for one in processes._mapped["shared"])
    assert first.rank is third.rank
    assert np.array_equal(first.duration, given[0].workload.duration)
    assert first.rank.flags.writeable
    assert not second.rank.flags.writeable
    first.duration[0] = 1.0
    assert given[0].workload.duration[0] != 1.0
    assert (tmp_path / "columns").read_bytes() == kept


def test_a_worker_keeps_to_the_limits_of_the_process_that_it_works_for():
    before = LIMITS.set(parse_limits(["depth=7"]))
    try:
        assert processes.ask_all([1, 2], depth_limit, 2, lambda _: None) == [7, 7]
    finally:
        LIMITS.reset(before)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_is_that_of_the_first_scenario_that_fails(workers):
    base = Scenario(job(), load_cluster("dgx-a100"))
    several = [(str(factor), improve(base, "compute", factor)) for factor in (1, 2, 4, 8)]
    with pytest.raises(DeadlockError, match=r"^of 4\.0e-04$"):
        map_scenarios(several, deadlocked, workers=workers)
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_is_an_error_and_not_an_endless_wait(scenarios):
    with pytest.raises(WhatIfError, match="a worker was killed"):
        map_scenarios(scenarios, killed, workers=2)


WITH_TWO = """
from helpers.asked import asleep
from experiments.evaluate.parallel import map_scenarios

if __name__ == "__main__":
    map_scenarios([("a", None), ("b", None)], asleep, workers=2)
"""


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_workers():
    begun = subprocess.Popen(
        [sys.executable, "-c", WITH_TWO],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert begun.stderr is not None
    assert [begun.stderr.readline() for _ in range(2)] == ["asleep\n"] * 2
    os.killpg(begun.pid, signal.SIGINT)
    assert "Interrupted" in begun.communicate(timeout=10)[1]
    for _ in range(50):
        try:
            os.killpg(begun.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("processes are left")


def environment():
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_what_takes_long_is_announced_once_when_two_are_answered():
    announced, asked = [], []

    def ask(scenario, progress=None):
        asked.append(scenario)
        begun = time.process_time()
        while len(asked) < 4 and time.process_time() - begun < 0.01:
            pass

    token = FORESEEN.set(lambda what: announced.append((len(asked), what)))
    try:
        map_scenarios([("few", None)] * 9, ask)
        assert not announced
        asked.clear()
        map_scenarios([("many", None)] * 2002, ask)
    finally:
        FORESEEN.reset(token)
    ((after, what),) = announced
    assert after == 2
    assert "the 2000 left will take about" in what


def test_without_a_worker_nothing_is_asked(scenarios):
    with pytest.raises(WhatIfError, match="0 workers"):
        map_scenarios(scenarios, outcome, workers=0)


def test_a_sweep_does_not_depend_on_the_number_of_processes():
    def points(workers):
        settings = Settings(workers=workers)
        swept = sweep(
            SAMPLE, "dgx-a100", "compute", factors=[1, 2], settings=replace(settings, nodes=2)
        )
        return swept.points

    assert points(1) == points(2)
