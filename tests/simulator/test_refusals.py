"""What contradicts itself is refused by name."""

import math
from dataclasses import replace

import numpy as np
import pytest

from helpers.strategies import ENGINES, plan, ring_network, switch_network
from simulator.builder import WorkloadBuilder
from simulator.engine.simulate import simulate
from simulator.errors import ScheduleError, TopologyError, WorkloadError
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import Link, scaled, topology
from simulator.workload import CallRow, Edges, Group, What


def builder(ranks=2):
    return WorkloadBuilder(job_ranks=ranks)


def op(into, *, rank=0, name="gemm", duration=1e-6, **columns):
    what = What.COLLECTIVE if "call" in columns else What.COMPUTE
    return into.op(what, rank=rank, lane="stream 7", name=name, duration=duration, **columns)


def one_call(size=1e3, **row):
    made = builder()
    call = made.call(CallRow("all_reduce", made.group((0, 1), "tp"), 4, size, **row))
    for rank in (0, 1):
        op(made, rank=rank, duration=0.0, call=call)
    return made


def refused(make, *said, error=WorkloadError):
    with pytest.raises(error) as caught:
        make()
    for words in said:
        assert words in str(caught.value)


def test_a_job_larger_than_the_network_names_both_sizes():
    workload = one_call().build()
    big = replace(workload, job_ranks=5)
    refused(
        lambda: simulate(big, ring_network(4), plan),
        "the job has 5 ranks",
        "ring 4 has 4",
        error=TopologyError,
    )


def test_an_unknown_engine_names_those_there_are():
    workload = one_call().build()
    refused(lambda: simulate(workload, ring_network(4), plan, engine="exact"), "'exact'", *ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_without_size_and_measured_time_is_refused(engine):
    workload = one_call(size=math.nan).build()
    refused(lambda: simulate(workload, ring_network(2), plan, engine=engine), "neither a size")


@pytest.mark.parametrize("wrong", [-1e-6, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_with_its_row(wrong):
    for column in ("duration", "ready"):
        made = builder()
        op(made)
        op(made, **{column: wrong})
        refused(made.build, column, "row 1", repr(np.float64(wrong)))
    made = builder()
    made.edge(op(made), op(made), lag=wrong)
    refused(made.build, "lag", "row 0")


@pytest.mark.parametrize(
    "column", ["rank", "lane", "name", "call", "duration", "ready", "measured_start"]
)
def test_columns_of_different_length_are_refused_by_name(column):
    workload = one_call().build()
    refused(lambda: replace(workload, **{column: getattr(workload, column)[:1]}), repr(column))


def test_edges_of_another_graph_are_refused():
    other = builder()
    op(other)
    workload = one_call().build()
    refused(lambda: replace(workload, edges=other.build().edges), "not those of 2 ops")


@pytest.mark.parametrize(("source", "target"), [(0, 2), (2, 0), (-1, 0), (0, -1)])
def test_an_edge_to_an_op_that_does_not_exist_is_refused(source, target):
    made = one_call()
    made.edge(source, target)
    refused(made.build, "outside 0..1")


@pytest.mark.parametrize("column", ["lane", "name"])
@pytest.mark.parametrize("wrong", [-1, 9])
def test_an_index_outside_its_table_is_refused(column, wrong):
    workload = one_call().build()
    bad = np.array([0, wrong], dtype=np.int32)
    refused(lambda: replace(workload, **{column: bad}), repr(column), "outside its table of 1")


@pytest.mark.parametrize("wrong", [-1, 2, 7])
def test_a_rank_outside_the_job_is_refused(wrong):
    made = builder()
    op(made, rank=wrong)
    refused(made.build, f"rank {wrong}", "job of 2")


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_group_with_a_rank_outside_the_job_is_refused(wrong):
    made = builder()
    call = made.call(CallRow("broadcast", made.group((0, wrong), "tp"), 0, 1.0))
    op(made, call=call)
    refused(made.build, "tp[2]", f"rank {wrong}", "job of 2")


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_call_of_a_group_that_does_not_exist_is_refused(wrong):
    made = one_call()
    made.call(CallRow("broadcast", wrong, 0, 1.0))
    refused(made.build, "group")


@pytest.mark.parametrize("column", ["late", "factor", "transfer"])
@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_call_cannot_be_early_or_cost_less_than_nothing(column, wrong):
    workload = one_call().build()
    if column == "transfer" and math.isnan(wrong):
        return  # not measured
    refused(lambda: workload.with_calls(**{column: np.array([wrong])}), column, "call 0")


@pytest.mark.parametrize("column", ["late", "factor", "transfer"])
def test_columns_of_calls_have_a_row_per_call(column):
    workload = one_call().build()
    refused(lambda: workload.with_calls(**{column: np.ones(2)}), repr(column), "1 rows")


def test_a_circle_is_named_op_by_op():
    made = builder()
    first, second, third = op(made, name="a"), op(made, name="b"), op(made, name="c", rank=1)
    for edge in ((first, second), (second, third), (third, second)):
        made.edge(*edge)
    refused(
        made.build,
        "circle",
        "rank 0 stream 7 'b' (op 1) -> rank 1 stream 7 'c' (op 2) -> rank 0 stream 7 'b' (op 1)",
    )


def test_an_op_that_waits_for_itself_is_a_circle():
    made = builder()
    made.edge(op(made), 0)
    refused(made.build, "circle", "(op 0) -> rank 0 stream 7 'gemm' (op 0)")


def test_joining_a_call_twice_names_op_and_call():
    made = one_call()
    op(made, name="again", call=0)
    refused(made.build, "'again' (op 2)", "all_reduce #4 of tp[2]", "has joined already")


def test_joining_a_call_of_others_names_op_and_group():
    made = builder(ranks=3)
    call = made.call(CallRow("all_reduce", made.group((0, 1), "tp"), 0, 1.0))
    op(made, rank=2, call=call)
    refused(made.build, "rank 2", "tp[2]", "does not belong")


def test_exactly_the_communication_ops_name_a_call():
    workload = one_call().build()
    computing = np.full(2, What.COMPUTE, dtype=np.uint8)
    refused(lambda: replace(workload, what=computing), "must name a call")
    nowhere = np.array([0, 1], dtype=np.int32)
    refused(lambda: replace(workload, call=nowhere), "must name a call")
    nothing = np.array([0, -1], dtype=np.int32)
    refused(lambda: replace(workload, call=nothing), "must name a call")


def test_calls_and_groups_are_checked_when_made():
    refused(lambda: CallRow("allreduce", 0, 0, 1.0), "'allreduce'", "all_reduce")
    refused(lambda: CallRow("all_reduce", 0, 0, -1.0), "size -1.0")
    refused(lambda: CallRow("all_reduce", 0, 0, math.inf), "size inf")
    refused(lambda: Group((), "tp"), "'tp'", "distinct")
    refused(lambda: Group((1, 1), "tp"), "'tp'", "distinct")


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_link_needs_a_bandwidth(wrong):
    refused(lambda: Link("a", "b", wrong, 0.0), "a -> b", "bandwidth", error=TopologyError)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_a_link_needs_a_latency(wrong):
    refused(lambda: Link("a", "b", 1.0, wrong), "a -> b", "latency", error=TopologyError)


def test_a_network_that_cannot_be_is_refused():
    def made(*pairs, ranks=2):
        return lambda: topology("net", ranks, [Link(*pair, 1.0, 0.0) for pair in pairs])

    refused(lambda: Link(1, 1, 1.0, 0.0), "1 -> 1", error=TopologyError)
    refused(made((0, 1), (0, 1)), "net", "two links 0 -> 1", error=TopologyError)
    refused(made((0, 1), ranks=3), "net", "rank 2 has no link", error=TopologyError)
    refused(made(ranks=0), "net", "not 0", error=TopologyError)


def test_only_what_there_is_can_be_scaled():
    network = switch_network(2)
    refused(lambda: scaled(network, "pcie"), "'pcie'", "scale_up", error=TopologyError)
    for factors in ({"bandwidth": 0.0}, {"bandwidth": math.nan}, {"latency": -1.0}):
        refused(lambda f=factors: scaled(network, "scale_up", **f), "factors", error=TopologyError)


def step(source=0, target=1, chunk=0, count=1, **run):
    columns = (np.array([value], dtype=np.int32) for value in (source, target, chunk, count))
    return Step(*columns, reduce=False, **run)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (step(target=2), "rank outside 0..1"),
        (step(source=-1), "rank outside 0..1"),
        (step(target=0), "sends to itself"),
        (step(chunk=1), "chunk outside 0..0"),
        (step(chunk=-1), "chunk outside 0..0"),
        (step(count=2), "chunk outside 0..0"),
        (step(count=0), "chunk outside 0..0"),
        (step(repeats=0), "positive"),
        (step(cycle=0), "positive"),
        (replace(step(), count=np.ones(2, dtype=np.int32)), "one length"),
    ],
)
def test_a_schedule_names_the_step_that_is_wrong(wrong, said):
    refused(
        lambda: Schedule("broadcast", "hand", 2, 1, 1, (step(), wrong)),
        "hand broadcast (n=2), step 1",
        said,
        error=ScheduleError,
    )


@pytest.mark.parametrize(
    "software", [{"overhead": -1.0}, {"step_latency": -1.0}, {"efficiency": 0.0}, {"efficiency": 2}]
)
def test_software_cannot_make_the_wire_faster(software):
    schedule = Schedule("broadcast", "hand", 2, 1, 1, (step(),))
    refused(lambda: Plan(schedule, **software), "hand broadcast", error=ScheduleError)


@pytest.mark.parametrize(
    ("offset", "target", "said"),
    [
        ([0, 1, 2], [1], "not those of 2 ops"),
        ([0, 1], [1], "not those of 2 ops"),
        ([1, 0, 1], [1], "do not follow each other"),
        ([0, 2, 1], [1], "do not follow each other"),
        ([0, 1, 1], [2], "an op outside 0..1"),
        ([0, 1, 1], [-1], "an op outside 0..1"),
    ],
)
def test_edges_that_lead_out_of_the_columns_are_refused(offset, target, said):
    workload = one_call().build()
    edges = Edges(np.array(offset), np.array(target, dtype=np.int32), np.zeros(len(target)))
    refused(lambda: replace(workload, edges=edges), said)
