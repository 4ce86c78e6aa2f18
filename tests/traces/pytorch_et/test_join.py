"""An Execution Trace and the profiler's trace of one rank: what is joined, added and left over."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.kineto_events import read_rank
from helpers.link_tapes import Tape
from helpers.places import SHARED
from helpers.pytorch_et_files import Program
from simulator.support.errors import TraceError
from traces.kineto.directory import read_job
from traces.load import load
from traces.pytorch_et.join import JoinedRank, enriched, join_traces, with_execution_traces
from traces.pytorch_et.reader import read_execution_trace

MEGATRON = SHARED / "traces" / "megatron-tp8-a100"
real = pytest.mark.skipif(not MEGATRON.is_dir(), reason="the real traces are not at hand")


def program(groups: bool = True) -> Program:
    """A layer, an all-reduce of two ranks that is waited for, a barrier, a layer."""
    found = Program("1.0.2-chakra.0.0.4")
    if groups:
        config = {"pg_name": "0", "pg_desc": "tp", "backend_id": 4711, "ranks": [0, 1]}
        found.groups({**config, "group_size": 2})
    outer = found.op("aten::linear")
    found.op("aten::mm", outer)
    call = found.op("c10d::allreduce_")
    found.comm("allreduce", 1 << 10, 2, call)
    found.comm("wait", 0, 2)
    found.comm("barrier", 1, 2)
    found.op("aten::relu")
    return found


def tape(found: Program, rank: int = 0, apart: int = 40, lost: str = "") -> Tape:
    """The same operators as a profiler without shapes records them; ``lost`` is not recorded.

    Between the barrier and the rest it counts one operator more.
    """
    recorded = Tape(rank, 2)
    at, where = 0.0, {}
    for node in found.nodes:
        told = {one["name"]: one["value"] for one in node["attrs"]}
        more = int(node["name"] == "aten::relu")
        inside = where.get(node["ctrl_deps"])
        begin = at if inside is None else inside + 1
        where[node["id"]] = begin
        external = {"External id": told["rf_id"] + apart + more}
        word = [value for value in node["inputs"]["values"] if isinstance(value, str)][-1:]
        if node["name"] != lost and word != [lost]:
            recorded.host(node["name"], begin, 20 if inside is None else 16, **external)
        if inside is None:
            at += 40
    return recorded


def both(folder: Path, rank: int = 0, lost: str = "", groups: bool = True) -> Tape:
    found = program(groups)
    found.write(folder / f"et_{rank}.json")
    recorded = tape(found, rank, lost=lost)
    start = 40.0 if groups else 0.0
    recorded.launch(start + 5, 7, start + 12, 10, "gemm")
    recorded.launch(start + 45, 24, start + 55, 20, "ncclDevKernel_Generic")
    recorded.launch(start + 500, 7, start + 510, 5, "a stranger")
    return recorded


def linked(folder: Path, lost: str = "") -> JoinedRank:
    path = both(folder, lost=lost).write(folder)
    return join_traces(read_execution_trace(folder / "et_0.json"), read_rank(path))


def test_operators_are_linked_though_the_two_count_differently(tmp_path: Path) -> None:
    found = linked(tmp_path)
    assert (found.nodes, found.nodes_linked) == (8, 8)
    names = found.execution.names
    pairs = [
        (found.rank.names[name], names[found.execution.name[node]])
        for name, node in zip(found.rank.host.name, found.host_node, strict=True)
        if node >= 0
    ]
    assert all(one == other for one, other in pairs)


def test_kernels_belong_to_the_innermost_operator_around_their_launch(tmp_path: Path) -> None:
    found = linked(tmp_path)
    owners = [found.execution.names[found.execution.name[node]] for node in found.device_node[:2]]
    assert owners == ["aten::mm", "record_param_comms"]
    assert (found.kernels, found.kernels_linked) == (3, 2)
    assert found.unlinked_kernels == {"a stranger": 1}


@pytest.mark.parametrize(
    ("lost", "host_only", "unlinked"),
    [("", {"wait": 1, "barrier": 1}, {}), ("wait", {"barrier": 1}, {"wait": 1})],
)
def test_every_communication_record_is_accounted_for(
    tmp_path: Path, lost: str, host_only: dict[str, int], unlinked: dict[str, int]
) -> None:
    comms = linked(tmp_path, lost).comms
    assert (comms.host_only, comms.unlinked, comms.with_kernel) == (host_only, unlinked, 1)
    parts = comms.with_kernel + sum(comms.host_only.values()) + sum(comms.unlinked.values())
    assert parts == comms.records == 3


def test_another_run_is_not_linked(tmp_path: Path) -> None:
    other = Program()
    for number in range(9):
        other.op(f"other::op{number}")
    trace = read_execution_trace(other.write(tmp_path / "other.json"))
    path = both(tmp_path).write(tmp_path)
    with pytest.raises(TraceError, match=r"0 of 9 operators are also in .*not of one rank"):
        join_traces(trace, read_rank(path))


def test_a_job_gains_groups_sizes_and_dtypes(tmp_path: Path) -> None:
    """The profiler recorded neither shapes nor groups; the Execution Trace tells both."""
    for rank in range(2):
        both(tmp_path, rank).write(tmp_path)
    found = load(tmp_path)
    assert found.coverage.collectives == found.coverage.sizes_known == 1
    call = found.workload.call_view(0)
    assert (call.kind, call.group.ranks, call.group.label) == ("all_reduce", (0, 1), "tp")
    assert (call.size, call.dtype) == (2048.0, "c10::Half")
    assert found.coverage.skipped == ()
    (note,) = (note for note in found.coverage.notes if "execution traces used" in note)
    assert "4 of 6 kernels linked" in note
    assert "6 communication records 2 have a kernel, 4 are the host's alone, 0 are not" in note
    assert "not linked: a stranger" in note
    for rank in range(2):
        (tmp_path / f"et_{rank}.json").unlink()
    assert load(tmp_path).coverage.sizes_known == 0


def test_an_execution_trace_that_does_not_fit_is_skipped_with_the_reason(tmp_path: Path) -> None:
    both(tmp_path).write(tmp_path)
    both(tmp_path, 1).write(tmp_path)
    other = Program()
    other.op("other::op")
    other.write(tmp_path / "et_0.json")
    program().write(tmp_path / "et_7.json")
    broken = {"schema": "1.0.1", "pid": 1, "nodes": [{"id": "x"}]}
    (tmp_path / "et_1.json").write_text(json.dumps(broken))
    (tmp_path / "et.json").write_text(json.dumps(program().document()))
    told = {one.file.name: one.reason for one in with_execution_traces(read_job(tmp_path)).skipped}
    assert "not of one rank" in told["et_0.json"]
    assert "of rank 7, which has no profiler trace" in told["et_7.json"]
    assert "which rank is this" in told["et.json"]
    assert "is broken" in told["et_1.json"]


def test_groups_that_only_some_ranks_tell_are_not_taken(tmp_path: Path) -> None:
    for rank in range(2):
        both(tmp_path, rank).write(tmp_path)
    (tmp_path / "et_1.json").unlink()
    found = load(tmp_path)
    assert found.coverage.collectives == found.coverage.collectives_matched == 1
    call = found.workload.call_view(0)
    assert (call.group.ranks, call.group.label, call.size) == ((0, 1), "", 2048.0)


def test_what_the_profiler_recorded_is_kept(tmp_path: Path) -> None:
    path = both(tmp_path).write(tmp_path)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event["name"] == "record_param_comms":
            event["args"] |= {"Collective name": "allgather", "dtype": "Float", "Group size": 2}
            event["args"] |= {"In msg nelems": 3, "Out msg nelems": 6}
    path.write_text(json.dumps(document))
    rank = read_rank(path)
    more = enriched(join_traces(read_execution_trace(tmp_path / "et_0.json"), rank))
    for row in np.flatnonzero(rank.host.comm >= 0):
        known, told = rank.comms[rank.host.comm[row]], more.comms[more.host.comm[row]]
        if known.collective == "allgather":
            assert (told.in_elements, told.out_elements, told.dtype) == (3, 6, "Float")
            assert told.collective == "allgather"


@real
@pytest.mark.parametrize("number", [0, 7])
def test_every_kernel_and_record_of_the_megatron_job(number: int) -> None:
    trace = read_execution_trace(MEGATRON / f"et_{number}.json.gz")
    found = join_traces(trace, read_rank(MEGATRON / f"kineto_{number}.json.gz"))
    assert (found.nodes, found.nodes_linked) == (5422, 5422)
    assert (found.kernels, found.kernels_linked, found.unlinked_kernels) == (690, 690, {})
    comms = found.comms
    assert (comms.records, comms.with_kernel, comms.unlinked) == (170, 84, {})
    assert comms.host_only == {"wait": 85, "allreduce of a rank with itself": 1}
    assert trace.unused == {}


@real
def test_sizes_that_the_profiler_did_not_record_come_from_the_execution_trace(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        document = json.loads(gzip.decompress((MEGATRON / f"kineto_{rank}.json.gz").read_bytes()))
        for event in document["traceEvents"]:
            for name in ("Input Dims", "Input type", "Concrete Inputs"):
                event.get("args", {}).pop(name, None)
        (tmp_path / f"kineto_{rank}.json").write_text(json.dumps(document))
    assert load(tmp_path).coverage.sizes_known == 0
    for rank in range(2):
        name = f"et_{rank}.json.gz"
        (tmp_path / name).write_bytes((MEGATRON / name).read_bytes())
    found = load(tmp_path).coverage
    assert found.sizes_known == found.collectives == 84
