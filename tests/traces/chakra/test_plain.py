"""Files read as columns are what they are node by node, to the last note."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from helpers.chakra_traces import body, collective, host, node, receive, send
from simulator.errors import TwofoldError
from traces.chakra.columns import of_plain
from traces.chakra.files import read_files
from traces.chakra.reader import load_files
from traces.chakra.schema import COLL, MEM_LOAD, METADATA
from traces.chakra.stream import ChakraTrace
from traces.chakra.write import save_chakra

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


def by_node(files):
    """The same files, of which no file is plain."""
    return replace(
        files,
        ranks=tuple(replace(one, trace=_not_plain(one.trace)) for one in files.ranks),
    )


def _not_plain(trace: ChakraTrace) -> ChakraTrace:
    return replace(trace, plain=None)


def answered(path, files):
    """What is loaded, as comparable values, or the error."""
    try:
        loaded = load_files(path, files)
    except TwofoldError as error:
        return str(error)
    workload = loaded.workload
    told = [getattr(workload, name) for name in COLUMNS]
    told += [getattr(workload.edges, name) for name in EDGES]
    told += [getattr(workload.calls, name) for name in CALLS]
    return [
        np.nan_to_num(one, nan=-1.0).tolist() if isinstance(one, np.ndarray) else one
        for one in told
    ] + [asdict(loaded.coverage)]


def is_plain(files):
    return all(of_plain(one.trace, one.rank) is not None for one in files.ranks)


def same(path):
    files = read_files(path)
    answer = answered(path, files)
    assert answer == answered(path, by_node(files))
    return files, answer


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
def test_columns_are_what_nodes_are(tmp_path_factory, ranks):
    files, answer = same(write(tmp_path_factory.mktemp("job"), ranks))
    event("refused" if isinstance(answer, str) else "loaded")
    assert is_plain(files)


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
    ],
    ids=["twice", "missing", "later", "cycle", "start", "metadata", "comms", "not ASCII"],
)
def test_what_is_not_plain_is_read_node_by_node(tmp_path, nodes):
    files, _ = same(write(tmp_path, [nodes]))
    assert not is_plain(files)


def test_ids_in_any_order_are_plain_while_nodes_stand_behind_those_they_wait_for(tmp_path):
    nodes = [node(2**64 - 1, us=3), node(7, us=2, after=[2**64 - 1]), node(9, after=[7, 2**64 - 1])]
    files, _ = same(write(tmp_path, [nodes]))
    assert is_plain(files)


def test_ranks_that_disagree_are_told_by_the_node(tmp_path):
    files, answer = same(write(tmp_path, [[collective(4)], [collective(4), collective(5)]]))
    assert is_plain(files)
    assert "trace.1.et: node 5" in answer


def test_alike_calls_with_unlike_inputs_are_told_apart(tmp_path):
    one, other = collective(1), collective(2, after=[1])
    one.inputs.types, other.inputs.types = "['Tensor(float)']", "['Tensor(c10::Half)']"
    files, _ = same(write(tmp_path, [[one, other]] * 2))
    assert is_plain(files)
    assert load_files(tmp_path, files).workload.calls.dtype == ("float", "c10::Half")


def test_a_plain_file_is_decoded_only_if_its_nodes_are_asked_for(tmp_path):
    files = read_files(write(tmp_path, [[node(1, us=4), node(2, after=[1])]]))
    trace = files.ranks[0].trace
    load_files(tmp_path, files)
    assert "_every" not in vars(trace)
    assert [one.id for one in trace.nodes] == [1, 2]


def test_a_file_that_this_project_wrote_is_not_taken_for_a_plain_one(tmp_path):
    from traces.load import load

    save_chakra(load("traces/samples/gpu-dp2-tp4"), tmp_path)
    assert not is_plain(read_files(tmp_path))


def test_alike_nodes_without_a_kind_are_each_counted(tmp_path):
    nodes = [node(at, COLL, comm_type=99, comm_size=8, name="all") for at in range(3)]
    files, _ = same(write(tmp_path, [nodes]))
    assert is_plain(files)
    notes = load_files(tmp_path, files).coverage.notes
    assert "3 collectives of comm_type 99, which Chakra does not have" in notes


def test_only_kernels_that_wait_for_the_host_are_launched(tmp_path):
    kernels = [node(number, is_cpu_op=False, after=after) for number, after in ((2, [1]), (3, [2]))]
    files, _ = same(write(tmp_path, [[host(1), *kernels, host(4, after=[1])]]))
    coverage = load_files(tmp_path, files).coverage
    assert (coverage.kernels, coverage.launches_paired) == (2, 1)
