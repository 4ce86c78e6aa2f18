"""NDTimeline: a pipeline known by hand, and what its authors published of a real one."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.ndtimeline_files import COLUMNS, rows, write
from helpers.passes import timeline
from helpers.strategies import switch_network
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.load import load, recognised
from traces.ndtimeline import pipeline_step, read_table

SHARED = Path(__file__).parents[3].parent / "shared/traces/formats/ndtimeline"
NETWORK = switch_network(8, bandwidth=1e9, latency=1e-6)


def step_time(workload):
    return float(timeline(workload, NETWORK, engine="analytic").end.max())


def without_delays(workload):
    edges = replace(workload.edges, lag=np.zeros_like(workload.edges.lag))
    return replace(workload, ready=np.zeros_like(workload.ready), edges=edges)


def test_a_step_known_by_hand_is_replayed_and_what_it_waits_for_is_known(tmp_path):
    file = write(tmp_path / "trace", rows())
    assert recognised(file) == "ndtimeline"
    loaded = load(file)
    workload = loaded.workload
    assert (loaded.coverage.steps, loaded.measured_step) == ((3,), 17.0)
    assert workload.ranks == (0, 1, 2, 3)
    assert step_time(workload) == pytest.approx(17.0)
    names = np.array(workload.names)[workload.name]
    slow = np.where(names == "forward-compute", 2 * workload.duration, workload.duration)
    assert step_time(replace(workload, duration=slow)) == pytest.approx(21.0)
    edges = workload.edges.source, workload.edges.target
    waits = {(names[source], names[target]) for source, target in zip(*edges, strict=True)}
    assert ("forward-compute", "backward-recv") in waits, "posted just when it ended"
    assert ("backward-compute", "forward-recv") not in waits
    groups = {str(group): group.ranks for group in workload.groups}
    assert groups["all[4]"] == (0, 1, 2, 3)
    assert {group.ranks for group in workload.groups if group.label == "data"} == {(0, 2), (1, 3)}


def test_delays_of_a_step_are_kept_and_can_be_left_out(tmp_path):
    """All operations but the first two stages' begins come a second later."""
    late = [
        (*row[:5], row[5] + (row[5] >= 9.0), row[6] + (row[5] < 9.0 <= row[5] + row[6]), *row[7:])
        for row in rows()
    ]
    workload = load(write(tmp_path / "trace", late)).workload
    assert step_time(workload) == pytest.approx(18.0)


@pytest.fixture(scope="module")
def published():
    if not SHARED.exists():
        pytest.skip("no shared traces beside the checkout")
    steps = read_table(SHARED / "trace-ST.parquet")
    workloads = {step: pipeline_step(SHARED, workers) for step, workers in steps.items()}
    return json.loads((SHARED / "result-ST.json").read_text()), steps, workloads


def test_recorded_steps_and_those_without_delays_are_as_published(published):
    result, _, workloads = published
    for step, workload in workloads.items():
        want = [result[key][str(step)] for key in ("step_t_base", "step_t_nodelay")]
        made = [step_time(workload), step_time(without_delays(workload))]
        assert made == pytest.approx(want, rel=0.005)


class WhatIf:
    """Steps in which every operation takes as long as its like do, but for some of them."""

    def __init__(self, workloads):
        self.workloads = [without_delays(workload) for workload in workloads.values()]
        seconds, transfers = defaultdict(list), defaultdict(list)
        for workload in self.workloads:
            for name, duration, call in zip(
                workload.name, workload.duration, workload.call, strict=True
            ):
                kind = workload.names[name]
                if call < 0:
                    seconds[kind].append(duration)
                else:
                    transfers[kind].append(workload.calls.transfer[call])
        self.usual = {kind: np.mean(times) for kind, times in seconds.items()}
        self.usual |= {kind: np.median(times) for kind, times in transfers.items()}

    def mean_step(self, kept=lambda workload: np.zeros(len(workload), dtype=bool)):
        return np.mean([step_time(self._evened(w, kept(w))) for w in self.workloads])

    def _evened(self, workload, kept):
        usual = np.array([self.usual[name] for name in workload.names])[workload.name]
        local = (workload.call < 0) & ~kept
        called = (workload.call >= 0) & ~kept
        transfer = workload.calls.transfer.copy()
        transfer[workload.call[called]] = usual[called]
        own = workload.call[(workload.call >= 0) & kept]
        transfer[own] = workload.calls.transfer[own]
        return replace(
            workload,
            duration=np.where(local, usual, workload.duration),
            calls=replace(workload.calls, transfer=transfer),
        )


def test_slowdowns_by_stage_replica_and_type_are_as_published(published):
    """Equations 1 and 2 of the paper, within a part of the 5 % that another model may be off."""
    result, steps, workloads = published
    what_if = WhatIf(workloads)
    ideal = what_if.mean_step()
    assert ideal == pytest.approx(result["step_t_noblk"]["23"], rel=0.005)
    workers = next(iter(steps.values()))
    for key, place in (("stage", "stage"), ("dp_rank", "replica")):
        number = {worker.rank: getattr(worker, place) for worker in workers}
        for which, slowdown in result[f"blocking_decompose_by_{key}"].items():
            mine = what_if.mean_step(
                lambda w, number=number, which=which: np.array(
                    [number[rank] == int(which) for rank in w.rank.tolist()]
                )
            )
            assert mine / ideal == pytest.approx(slowdown, rel=0.005)
    for kind in ("forward-compute", "backward-compute", "embedding-grads-all-reduce"):
        mine = what_if.mean_step(lambda w, kind=kind: np.array(w.names)[w.name] == kind)
        assert mine / ideal == pytest.approx(
            result["blocking_decompose_by_optype"][kind], rel=0.005
        )


def changed(column, value):
    at = COLUMNS.index(column)
    return [(*row[:at], value, *row[at + 1 :]) if n == 4 else row for n, row in enumerate(rows())]


DAMAGED = {
    "type": (changed("optype", "dance"), "optype: 'dance' is not one of"),
    "time": (changed("duration", float("nan")), "row 4: duration"),
    "early": (changed("start_ts", -1.0), "row 4: start_ts"),
    "stage": (changed("stage", -1), "row 4: stage"),
    "rank": (changed("rank", 9), "one is recorded of each"),
    "chunk": ([(*row[:8], 1, *row[9:]) for row in rows()], "interleaved"),
    "half": ([row for row in rows() if row[4] != "forward-recv"], "the table is incomplete"),
    "true": ([(*row[:6], True, *row[7:]) for row in rows()], "row 0: duration: True"),
    "twice": (rows() + rows()[3:4], "backward-compute at 9 s is in 2 rows"),
    "at once": (
        [(*row[:5], min(row[5], 1.5), *row[6:]) for row in rows()],
        "start_ts: backward-compute begins at 1.5 s, before forward-compute ends at 2 s",
    ),
    "milliseconds": (
        [
            (*row[:5], *((row[5] * 1e3, row[6] * 1e3) if row[1] else row[5:7]), *row[7:])
            for row in rows()
        ],
        "backward-recv ends at 9 s, before its backward-send of stage 1 begins at 8500 s",
    ),
    "no end": ([row for row in rows() if row[4] != "optimizer"], "an optimizer"),
}


@pytest.mark.parametrize(("table", "why"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_table_is_refused_in_one_line(tmp_path, table, why):
    file = write(tmp_path / "trace", table)
    with pytest.raises(TraceError, match=why) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_parquet_is_not_of_the_format(tmp_path):
    file = write(tmp_path / "trace", rows(), COLUMNS[:4])
    assert recognised(file) == "kineto"  # the first format refuses what none recognises


@pytest.mark.parametrize("step", ["all", "9", "x", "³", "9" * 5000])
def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path, step):
    with pytest.raises(TraceError, match=r"no step .*(start at its own zero|the table has 3)"):
        load(write(tmp_path / "trace", rows()), step)


def test_garbage_collection_is_of_the_host(tmp_path):
    table = [
        *rows(),
        *(
            (r, s, 2 * r + s, 3, "gc", 13.0 if s == 0 else 8.5, 0.0, 0, -1, 0, -1)
            for r in (0, 1)
            for s in (0, 1)
        ),
    ]
    workload = load(write(tmp_path / "trace", table)).workload
    assert (workload.what == What.HOST).sum() == 4
    assert step_time(workload) == pytest.approx(17.0)
