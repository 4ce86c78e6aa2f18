"""Workload -> Chakra -> Workload is the identity, and ASTRA-sim finds in it what it wants."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.baseline import with_costs
from experiments.scenario.scenario import Scenario
from helpers.chakra_traces import whole
from helpers.link_tapes import Tape
from helpers.places import SAMPLES, SHARED
from helpers.strategies import workloads
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import UNKNOWN, CallRow
from simulator.support.errors import OutputError, TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.chakra.files import read_messages
from traces.chakra.reader import load_chakra
from traces.chakra.schema import COLL, COMP, OWN, RECV, SEND, attribute_value
from traces.chakra.stream import encode_stream
from traces.chakra.write import write_chakra
from traces.load import load

TRACES = SHARED / "traces"


def assert_same(one, other):
    """Equal to the last bit, tables and all."""
    for column in fields(one):
        mine, theirs = getattr(one, column.name), getattr(other, column.name)
        if column.name in ("module", "modules"):
            continue  # Chakra has no field for them
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype, column.name
            np.testing.assert_array_equal(mine, theirs, err_msg=column.name)
        elif hasattr(mine, "__dataclass_fields__") and column.name in ("edges", "calls"):
            assert_same(mine, theirs)
        else:
            assert mine == theirs, column.name


def again(workload, folder):
    write_chakra(workload, folder, "any prefix.7")
    return load_chakra(folder).workload


def attributes(node):
    return {one.name: attribute_value(one) for one in whole(node).attr}


def nodes_of(path):
    return {node.name: (node, attributes(node)) for node in read_messages(path).nodes}


@tries(60)
@given(workload=workloads(4), data=st.data())
def test_what_was_written_is_read(tmp_path_factory, workload, data):
    """With starts and ends known of some ops, as traces have them, and transfers of some calls."""
    known = np.array([data.draw(st.booleans()) for _ in range(len(workload))])
    start = np.where(known, np.arange(len(workload)) * 1.1e-7, np.nan)
    some = np.arange(len(workload.calls)) % 2 == 0
    transfer = np.where(some, 1.23456789e-5, np.nan)
    workload = replace(workload, measured_start=start, measured_end=start + 1e-9)
    workload = replace(workload.with_calls(transfer=transfer), notes=("it is", "noted"))
    folder = tmp_path_factory.mktemp("written")
    assert_same(workload, again(workload, folder))
    assert_same(workload, again(load_chakra(folder).workload, folder))


@pytest.mark.parametrize("sample", ["gpu-dp2-tp4", "gloo-ddp-4"])
def test_a_profiled_step_is_kept(sample, tmp_path):
    loaded = load(SAMPLES / sample)
    write_chakra(loaded.workload, tmp_path)
    kept = load_chakra(tmp_path)
    # A file has one step, which does not say how the next one follows.
    assert_same(replace(loaded.workload, repeats=None, advance=None), kept.workload)
    assert kept.measured_step == max(loaded.measured_end.values())
    assert kept.measured_end == loaded.measured_end
    assert kept.coverage.collectives == loaded.coverage.collectives


def test_a_step_of_many_shapes_is_kept(tmp_path):
    tape = Tape()
    tape.step(1, 0, 400)
    tape.launch(10, 7, 30, 50)
    tape.launch(20, 9, 40, 10, "Memcpy DtoD")
    tape.collective(100, 20, 130, 60)
    tape.wait(150)
    tape.call("cudaDeviceSynchronize", 180, 40)
    loaded = load(tape.write(tmp_path))
    write_chakra(loaded.workload, tmp_path / "as chakra")
    assert_same(loaded.workload, load_chakra(tmp_path / "as chakra").workload)


def without_our_attributes(folder):
    """What any other tool would have written: starts and durations in whole microseconds."""
    for path in folder.glob("*.et"):
        trace = read_messages(path)
        nodes = [whole(node) for node in trace.nodes]
        for message in (trace.metadata, *nodes):
            kept = [a.SerializeToString() for a in message.attr if not a.name.startswith(OWN)]
            kind = type(message.attr.add())
            del message.attr[:]
            message.attr.extend(kind.FromString(one) for one in kept)
        path.write_bytes(encode_stream(trace.metadata, nodes))


@pytest.mark.parametrize(
    "path",
    [
        SAMPLES / "gpu-dp2-tp4",
        pytest.param(
            TRACES / "megatron-tp8-a100",
            marks=pytest.mark.skipif(not TRACES.is_dir(), reason="real traces not at hand"),
        ),
    ],
    ids=lambda path: path.name,
)
def test_a_profiled_step_replays_from_starts_and_durations_alone(path, tmp_path):
    profiled = load(path)
    write_chakra(profiled.workload, tmp_path)
    without_our_attributes(tmp_path)
    loaded = load_chakra(tmp_path)
    measured = max(profiled.measured_end.values())
    assert loaded.measured_step == pytest.approx(measured, abs=2e-6)
    assert loaded.coverage.starts_explained > 0.98
    assert loaded.coverage.unused == {}
    calls, before = loaded.workload.calls, profiled.workload.calls
    assert calls.size.tolist() == before.size.tolist()
    assert calls.transfer == pytest.approx(before.transfer, abs=3e-6)
    scenario = Scenario(loaded.workload, load_cluster("dgx-a100"), engine="analytic")
    timeline = with_costs(scenario, "trace").run()
    assert timeline.makespan == pytest.approx(measured, rel=0.005)


def job():
    builder = WorkloadBuilder(job_ranks=4)
    pair, ring = builder.group((3, 1), "pp"), builder.group((0, 1, 2, 3), "dp")
    made = {}
    for rank in range(4):
        made[rank] = [
            builder.op(What.HOST, rank=rank, lane="main", name="host", duration=1.4e-6),
            builder.op(What.COMPUTE, rank=rank, lane="s 7", name="gemm", duration=10.6e-6),
            builder.op(What.COPY, rank=rank, lane="s 9", name="copy", duration=3e-6),
        ]
        builder.edge(made[rank][0], made[rank][1], lag=4e-6)
    calls = {
        "reduce": builder.call(CallRow("all_reduce", ring, 0, 4001.0, "Float", 2.5e-5)),
        "gather": builder.call(CallRow("all_gather", ring, 1, 4001.0)),
        "lost": builder.call(CallRow(UNKNOWN, ring, 2, float("nan"), "", 7e-6)),
    }
    for name, call in calls.items():
        for rank in range(4):
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name=name, duration=0.0, call=call
            )
            builder.edge(made[rank][1], op)
    for sequence in range(2):
        call = builder.call(CallRow("send_receive", pair, sequence, 100.0))
        for rank, what in ((3, What.SEND), (1, What.RECEIVE)):
            name = f"message {sequence}"
            builder.op(what, rank=rank, lane="p", name=name, duration=0.0, call=call)
    return builder.build()


def test_astra_sim_finds_what_it_replays(tmp_path):
    """Whole microseconds; a copy, which it asks for a size, and a call without one as compute."""
    write_chakra(job(), tmp_path, "step")
    nodes = nodes_of(tmp_path / "step.0.et")
    types = {name: node.type for name, (node, _) in nodes.items()}
    assert types == {
        "host": COMP,
        "gemm": COMP,
        "copy": COMP,
        "reduce": COLL,
        "gather": COLL,
        "lost": COMP,
    }
    on_host = {name for name, (_, own) in nodes.items() if own["is_cpu_op"]}
    assert on_host == {"host"}
    spent = {name: node.duration_micros for name, (node, _) in nodes.items()}
    assert spent == {"host": 1, "gemm": 11, "copy": 3, "reduce": 25, "gather": 0, "lost": 7}
    assert list(nodes["gemm"][0].data_deps) == [nodes["host"][0].id]
    assert all(len(node.ctrl_deps) == 0 for node, _ in nodes.values())


def test_astra_sim_finds_its_collectives(tmp_path):
    """comm_size is what a rank puts in; the group is a number, not 0, of comm_group.json."""
    write_chakra(job(), tmp_path, "step")
    groups = json.loads((tmp_path / "comm_group.json").read_text())
    assert groups == {"1": [3, 1], "2": [0, 1, 2, 3]}
    nodes = nodes_of(tmp_path / "step.2.et")
    wanted = {"reduce": (0, 4001), "gather": (2, 1001)}
    for name, (kind, size) in wanted.items():
        own = nodes[name][1]
        assert (own["comm_type"], own["comm_size"], own["pg_name"]) == (kind, size, "2")


def test_astra_sim_finds_both_ends_of_a_message(tmp_path):
    write_chakra(job(), tmp_path, "step")
    for rank, kind in ((3, SEND), (1, RECV)):
        nodes = nodes_of(tmp_path / f"step.{rank}.et")
        for sequence in range(2):
            node, own = nodes[f"message {sequence}"]
            told = [own[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
            assert (node.type, told) == (kind, [3, 1, sequence, 100])


def test_a_part_of_the_files_is_read_as_any_chakra_trace(tmp_path):
    write_chakra(job(), tmp_path, "step")
    loaded = load_chakra(tmp_path / "step.1.et")
    workload = loaded.workload
    assert (workload.ranks, workload.job_ranks) == ((1,), 4)
    calls = {c.kind: c for c in map(workload.call_view, range(len(workload.calls)))}
    assert calls["all_reduce"].group.label == "dp"
    assert calls["all_gather"].size == 4004
    assert calls["send_receive"].group.ranks == (3, 1)
    gemm = next(op for op in workload.ops() if op.name == "gemm")
    assert (gemm.what, gemm.lane, gemm.duration) == (What.COMPUTE, "s 7", 10.6e-6)


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    write_chakra(job(), tmp_path, "step")
    path = tmp_path / "step.2.et"
    data = path.read_bytes()
    trace = read_messages(path)
    last = trace.nodes[-1].SerializeToString()
    path.write_bytes(data[: -len(last) - (1 if len(last) < 128 else 2)])
    with pytest.raises(TraceError, match=r"step\.2\.et: 5 nodes of 6"):
        load_chakra(tmp_path)
    write_chakra(replace(job(), notes=("another",)), tmp_path / "other", "step")
    path.write_bytes((tmp_path / "other" / "step.2.et").read_bytes())
    with pytest.raises(TraceError, match="twofold_notes differs"):
        load_chakra(tmp_path)


def test_what_chakra_has_no_place_for_is_refused(tmp_path):
    with pytest.raises(OutputError, match="without ops"):
        write_chakra(WorkloadBuilder(job_ranks=1).build(), tmp_path)
    builder = WorkloadBuilder(job_ranks=2)
    builder.op(What.HOST, rank=0, lane="", name="", duration=0.0)
    builder.call(CallRow("barrier", builder.group((0, 1)), 0, 0.0))
    with pytest.raises(OutputError, match="joined by no op"):
        write_chakra(builder.build(), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_chakra(job(), tmp_path / "file")


def test_a_set_of_files_is_written_whole_or_not_at_all(tmp_path):
    *first, last = write_chakra(job(), tmp_path)
    for path in first:
        path.write_text("before")
    last.unlink()
    last.mkdir()
    with pytest.raises(OutputError, match=f"{last.name}: cannot be written"):
        write_chakra(job(), tmp_path)
    assert {*tmp_path.iterdir()} == {*first, last}
    assert {path.read_text() for path in first} == {"before"}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not at hand")
def test_the_megatron_step_keeps_its_84_collectives(tmp_path):
    loaded = load(TRACES / "megatron-tp8-a100")
    write_chakra(loaded.workload, tmp_path)
    assert_same(loaded.workload, load_chakra(tmp_path).workload)
    for rank in range(8):
        nodes = read_messages(tmp_path / f"trace.{rank}.et").nodes
        told = [attributes(node) for node in nodes if node.type == COLL]
        assert len(told) == 84
        assert sum(own["comm_size"] == 64 << 20 for own in told) == 81
        assert {own["pg_name"] for own in told} <= set(
            json.loads((tmp_path / "comm_group.json").read_text())
        )
