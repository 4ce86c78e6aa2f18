"""The critical path tiles the time from 0 to the makespan."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import ENGINES, cases, plan, ring_network, with_software
from helpers.tries import tries
from simulator.analysis.critical_path import (
    critical_path,
    path_by_group,
    path_by_what,
    pinned_parts,
)
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.workload import DATA_LOADER, LAUNCH_DELAY, UNEXPLAINED_HOST, What

every_engine = pytest.mark.parametrize("engine", ENGINES)


@every_engine
@tries(60)
@given(case=cases(items=14))
def test_segments_follow_each_other_from_zero_to_the_makespan(engine, case):
    timeline = simulate(*case, with_software, engine=engine)
    path = critical_path(timeline)
    edges = [0.0, *(segment.end for segment in path)]
    assert [segment.start for segment in path] == edges[:-1]
    assert edges[-1] == timeline.makespan
    assert all(segment.duration > 0 for segment in path)


@every_engine
@tries(60)
@given(case=cases(items=14))
def test_times_by_what_and_by_group_add_up(engine, case):
    timeline = simulate(*case, with_software, engine=engine)
    path = critical_path(timeline)
    by_what, by_group = path_by_what(timeline, path), path_by_group(timeline, path)
    assert sum(by_what.values()) == pytest.approx(timeline.makespan, rel=1e-9, abs=1e-15)
    moving = sum(segment.duration for segment in path if segment.what == "communication")
    links = {*timeline.topology.resources, "software"}
    assert sum(by_group.values()) == pytest.approx(moving, rel=1e-12)
    assert sum(by_what.get(name, 0.0) for name in links) == pytest.approx(moving, rel=1e-9)
    # What calls spent says in which proportions, however long they were alone.
    longer = replace(timeline, call_spent=3.0 * timeline.call_spent)
    assert path_by_what(longer, path) == pytest.approx(by_what, rel=1e-9)


def by_hand():
    """Rank 1 is late; its kernel, a call with absent ranks, and a drain make the path."""
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1), "dp"), 0, 4e3))

    def op(what, rank, duration, **columns):
        return builder.op(what, rank=rank, lane="s", name="x", duration=duration, **columns)

    launch = op(What.HOST, 1, 2e-6, ready=1e-6)
    kernel = op(What.COMPUTE, 1, 10e-6)
    joins = [op(What.COLLECTIVE, rank, drain, call=call) for rank, drain in ((0, 0.0), (1, 3e-6))]
    copy = op(What.COPY, 1, 5e-6)
    builder.edge(launch, kernel, lag=4e-6)
    builder.edge(kernel, joins[1], lag=1e-6)
    builder.edge(joins[1], copy)
    workload = builder.build().with_calls(late=np.array([7e-6]))
    return simulate(workload, ring_network(2), lambda *on: plan(*on, overhead=2e-6))


def test_every_stretch_of_the_path_says_what_it_was_spent_on():
    path = critical_path(by_hand())
    spent = [(segment.what, round(segment.duration * 1e6, 6), segment.op) for segment in path]
    assert spent == [
        ("not ready", 1.0, 0),
        ("host", 2.0, 0),
        ("launch", 4.0, 1),
        ("compute", 10.0, 1),
        ("gap", 1.0, 3),
        ("absent ranks", 7.0, 3),
        ("communication", 2.0 + 2 * (1.0 + 2.0), 3),
        ("drain", 3.0, 3),
        ("copy", 5.0, 4),
    ]


def test_communication_is_split_by_resource_and_by_group():
    timeline = by_hand()
    path = critical_path(timeline)
    by_what = path_by_what(timeline, path)
    assert by_what["scale_up"] == pytest.approx(6e-6)
    assert by_what["software"] == pytest.approx(2e-6)
    assert "communication" not in by_what
    assert path_by_group(timeline, path) == {"all_reduce dp[2]": pytest.approx(8e-6)}


def test_nothing_has_no_path():
    timeline = simulate(WorkloadBuilder(job_ranks=1).build(), ring_network(2), plan)
    assert not critical_path(timeline)
    assert timeline.makespan == 0.0


@every_engine
def test_of_a_call_it_goes_on_with_the_member_that_came_last(engine):
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1), "dp"), 0, 4e3))
    ops = {}
    for rank, before, after in ((0, 2e-6, 9e-6), (1, 10e-6, 1e-6)):
        first, joins, last = (
            builder.op(what, rank=rank, lane="s", name="x", duration=duration, **joined)
            for what, duration, joined in (
                (What.COMPUTE, before, {}),
                (What.COLLECTIVE, 0.0, {"call": call}),
                (What.COMPUTE, after, {}),
            )
        )
        builder.edge(first, joins)
        builder.edge(joins, last)
        ops[rank] = first, joins, last
    timeline = simulate(builder.build(), ring_network(2), with_software, engine=engine)
    path = [(segment.what, segment.op) for segment in critical_path(timeline)]
    assert path == [("compute", ops[1][0]), ("communication", ops[0][1]), ("compute", ops[0][2])]


SPECIAL = {DATA_LOADER: What.HOST, UNEXPLAINED_HOST: What.HOST, LAUNCH_DELAY: What.COPY}


def renamed(workload, seed):
    """Call some host ops and copies what readers call those of which nothing is seen."""
    chance, names = random.Random(seed), (*workload.names, *SPECIAL)
    name = workload.name.copy()
    for op in range(len(workload)):
        other = chance.choice(list(SPECIAL))
        if workload.what[op] == SPECIAL[other] and chance.random() < 0.6:
            name[op] = names.index(other)
    return replace(workload, names=names, name=name)


def use_before(workload, op, before):
    """Return what the time is between an op and the one that released it."""
    name = workload.names[workload.name[op]]
    if before < 0:
        return DATA_LOADER if name == DATA_LOADER else "not ready"
    if workload.what[before] == What.HOST:
        return "launch"
    return LAUNCH_DELAY if workload.names[workload.name[before]] == LAUNCH_DELAY else "gap"


def own_use(workload, op):
    name = workload.names[workload.name[op]]
    if workload.what[op] == What.HOST and name in SPECIAL:
        return name
    words = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}
    return words.get(What(workload.what[op]), "drain")


def followed(timeline):
    """Go back from the last op to what released it, one by one."""
    workload, op, path = timeline.workload, int(np.argmax(timeline.end)), []
    while op >= 0:
        call, left, end = int(workload.call[op]), op, timeline.end[op]
        if workload.unawaited[op] and timeline.start[op] >= timeline.call_end[call]:
            call = -1
        begun = over = end
        if call >= 0:
            op = int(timeline.call_released_by[call])
            begun, over = timeline.call_start[call], timeline.call_end[call]
        before = int(timeline.released_by[op])
        times = [timeline.end[before] if before >= 0 else 0.0, timeline.start[op], begun, over, end]
        uses = [
            (use_before(workload, op, before), op),
            ("absent ranks" if call >= 0 else own_use(workload, left), op),
            ("communication", left),
            ("drain", left),
        ]
        path = [
            (float(first), float(last), *use)
            for first, last, use in zip(times, times[1:], uses, strict=False)
            if last > first
        ] + path
        op = before
    return path


@every_engine
@tries(100)
@given(case=cases(items=14), seed=st.integers(0, 2**32 - 1))
def test_the_path_is_what_is_met_going_back_from_the_last_op(engine, case, seed):
    workload, network = case
    timeline = simulate(renamed(workload, seed), network, with_software, engine=engine)
    path = critical_path(timeline)
    wanted = followed(timeline)
    assert [(one.start, one.end, one.what, one.op) for one in path] == wanted
    seconds = {}
    for start, end, what, _ in wanted:
        seconds[what] = seconds.get(what, 0.0) + end - start
    assert path.seconds_by_use() == pytest.approx(seconds)
    assert [one.duration for one in path] == [end - start for start, end, _, _ in wanted]
    by_what, by_group = dict.fromkeys((*network.resources, "software"), 0.0), {}
    pinned = {
        what: time for what, time in seconds.items() if what not in ("host", "compute", "launch")
    }
    pinned.pop("communication", None)
    for start, end, what, op in wanted:
        if what == "communication":
            call = int(workload.call[op])
            view, spent = workload.call_view(call), timeline.call_spent[call]
            key = f"{view.kind} {view.group}"
            by_group[key] = by_group.get(key, 0.0) + end - start
            for name, part in zip(by_what, spent / (spent.sum() or 1.0), strict=True):
                by_what[name] += part * (end - start)
    assert path_by_group(timeline, path) == pytest.approx(by_group)
    whole = {what: time for what, time in seconds.items() if what != "communication"}
    parts = {name: time for name, time in by_what.items() if time}
    assert path_by_what(timeline, path) == pytest.approx(whole | parts)
    pinned = pinned | {"software": by_what["software"]}
    found = pinned_parts(timeline, path)
    assert found == pytest.approx({what: time for what, time in pinned.items() if time > 0})
    assert list(found.values()) == sorted(found.values(), reverse=True)
