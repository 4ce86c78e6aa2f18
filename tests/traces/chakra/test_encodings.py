"""Nodes mean the same however they are encoded, to the last note."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from helpers.chakra_traces import body, collective, host, node, receive, send, write_chakra_json
from simulator.support.errors import TwofoldError
from traces.chakra.files import read_files, read_messages
from traces.chakra.reader import load_chakra, load_files
from traces.chakra.schema import COLL, MEM_LOAD, METADATA
from traces.chakra.stream import _varint, is_json

COLUMNS = (
    *("what", "rank", "lane", "name", "call", "duration", "ready"),
    *("groups", "names", "lanes", "job_ranks", "notes"),
)
EDGES = ("offset", "target", "lag")
CALLS = ("kind", "group", "sequence", "size", "dtype", "transfer", "factor", "late", "eager")


def write(folder, ranks):
    folder.mkdir(exist_ok=True)
    for rank, nodes in enumerate(ranks):
        (folder / f"trace.{rank}.et").write_bytes(body(*nodes))
    return folder


def otherwise(folder, ranks):
    """Write the same nodes with a field each that columns are not read from: ``storage``."""
    folder.mkdir(exist_ok=True)
    for rank, nodes in enumerate(ranks):
        newer = [one.SerializeToString() + b"\x5a\x00" for one in nodes]
        framed = b"".join(_varint(len(one)) + one for one in newer)
        (folder / f"trace.{rank}.et").write_bytes(body() + framed)
    return folder


def as_json(folder, path):
    """Write the files of a folder as JSON."""
    folder.mkdir(exist_ok=True)
    for file in sorted(path.iterdir()):
        write_chakra_json(read_messages(file), folder / file.with_suffix(".json").name)
    return folder


def answered(path):
    """What is loaded, as comparable values, or the error, without what names the files."""
    try:
        loaded = load_files(path, read_files(path))
    except TwofoldError as error:
        return re.sub(r"\S*trace\.(\d+)\.\w+", r"rank \1", str(error))
    workload = loaded.workload
    columns = [getattr(workload, name) for name in COLUMNS]
    columns += [getattr(workload.edges, name) for name in EDGES]
    columns += [getattr(workload.calls, name) for name in CALLS]
    coverage = asdict(loaded.coverage)
    return [
        np.nan_to_num(one, nan=-1.0).tolist() if isinstance(one, np.ndarray) else one
        for one in columns
    ] + [coverage]


@pytest.mark.parametrize(
    "first", [{}, {"version": "0.0.4"}, {"attr": []}, {"version": "0.0.4", "attr": []}]
)
def test_json_is_told_by_its_metadata_and_the_node_behind_it(first):
    """Both fields of ``GlobalMetadata``, either, or none: protobuf leaves out what is empty."""
    head = json.dumps(first, indent=2)
    assert is_json((head + '\n{"id": 1').encode())
    assert not is_json(head.encode())
    assert not is_json((json.dumps(first | {"nodes": 1}) + '{"id": 1').encode())


def same(folder, ranks):
    """Check that all encodings of nodes mean the same; return what they mean."""
    path = write(folder / "usual", ranks)
    answer = answered(path)
    assert answer == answered(otherwise(folder / "otherwise", ranks))
    assert answer == answered(as_json(folder / "json", path))
    return path, answer


@st.composite
def programs(draw):
    """Nodes of a few ranks that mostly fit together."""
    size = draw(st.integers(1, 3))
    ranks = [[] for _ in range(size)]
    first = draw(st.sampled_from([0, 1, 300]))
    for turn in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["gemm", "host", "copy", "all", "message", "other"]))
        number = first + turn
        before = draw(st.lists(st.integers(first, max(first, number - 1)), max_size=2))
        after = [one for one in before if one < number]
        us = draw(st.integers(0, 3))
        ends = draw(st.permutations(range(size)))[:2]
        for rank, own in enumerate(ranks):
            common = {"after": after, "us": us + rank % 2}
            if kind == "gemm":
                own.append(node(number, is_cpu_op=False, num_ops=5, name="gemm", **common))
            elif kind == "host":
                own.append(host(number, tid=draw(st.integers(1, 2)), **common))
            elif kind == "copy":
                own.append(node(number, MEM_LOAD, **common))
            elif kind == "all":
                named = {"pg_name": "1"} if draw(st.booleans()) else {}
                own.append(collective(number, **common, **named))
            elif kind == "message" and len(ends) == 2 and rank in ends:
                make = send if rank == ends[0] else receive
                own.append(make(number, *ends, control=after, us=us))
            else:
                own.append(node(number, 9, **common))
    return ranks


@given(programs())
def test_nodes_mean_the_same_however_they_are_encoded(tmp_path_factory, ranks):
    _, answer = same(tmp_path_factory.mktemp("job"), ranks)
    event("refused" if isinstance(answer, str) else "loaded")


@pytest.mark.parametrize(
    "nodes",
    [
        [node(1), node(1)],
        [node(1), node(2, after=[9])],
        [node(1, after=[2]), node(2)],
        [node(1, after=[2]), node(2, after=[1])],
        [node(1, start=5), node(2)],
        [node(1, METADATA, inputs="[{}]")],
        [node(1, name="record_param_comms", inputs="[]")],
        [node(1, inputs="größer")],
        [node(2**64 - 1, us=3), node(7, us=2, after=[2**64 - 1]), node(9, after=[7, 2**64 - 1])],
    ],
    ids=["twice", "missing", "later", "cycle", "start", "metadata", "comms", "not ASCII", "ids"],
)
def test_what_is_unusual_means_the_same_however_it_is_encoded(tmp_path, nodes):
    same(tmp_path, [nodes])


def test_ranks_that_disagree_are_told_by_the_node(tmp_path):
    _, answer = same(tmp_path, [[collective(4)], [collective(4), collective(5)]])
    assert "rank 1: node 5" in answer


def test_alike_calls_with_unlike_inputs_are_told_apart(tmp_path):
    one, other = collective(1), collective(2, after=[1])
    one.inputs.types, other.inputs.types = "['Tensor(float)']", "['Tensor(c10::Half)']"
    path, _ = same(tmp_path, [[one, other]] * 2)
    assert load_chakra(path).workload.calls.dtype == ("float", "c10::Half")


def test_what_nodes_share_is_decoded_once(tmp_path):
    nodes = [node(number, us=number, name="gemm") for number in range(1, 200)]
    path = write(tmp_path / "job", [nodes])
    (file,) = read_files(path).ranks
    assert len(file.trace.columns.kinds) == 1
    assert [one.id for one in file.trace.nodes] == list(range(1, 200))


def test_alike_nodes_without_a_kind_are_each_counted(tmp_path):
    nodes = [node(at, COLL, comm_type=99, comm_size=8, name="all") for at in range(3)]
    path, _ = same(tmp_path, [nodes])
    notes = load_chakra(path).coverage.notes
    assert "3 collectives of comm_type 99, which Chakra does not have" in notes


def test_only_kernels_that_wait_for_the_host_are_launched(tmp_path):
    kernels = [node(number, is_cpu_op=False, after=after) for number, after in ((2, [1]), (3, [2]))]
    path, _ = same(tmp_path, [[host(1), *kernels, host(4, after=[1])]])
    coverage = load_chakra(path).coverage
    assert (coverage.kernels, coverage.launches_paired) == (2, 1)
