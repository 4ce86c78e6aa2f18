"""Nodes of a Chakra trace that are alike are understood once, and each still counts."""

import pytest

from helpers.chakra_traces import body, collective, node, whole, write
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.chakra.calls import NAMED_KIND
from traces.chakra.files import read_messages
from traces.chakra.nodes import lanes_of, rank_nodes
from traces.chakra.reader import load_chakra
from traces.chakra.schema import COLL, Attributes, MetadataMessage
from traces.chakra.stream import decode_stream, encode_stream


def read(tmp_path, *nodes):
    path = tmp_path / "job.0.et"
    path.write_bytes(body(*nodes))
    return read_messages(path)


def test_nodes_with_the_same_attributes_share_their_values(tmp_path):
    one, two, three = read(
        tmp_path, node(0, num_ops=5), node(7, num_ops=5), node(8, num_ops=6)
    ).values
    assert one is two
    assert one == {"num_ops": 5}
    assert three == {"num_ops": 6}


def test_of_two_attributes_with_one_name_the_first_counts():
    message = node(0, num_ops=5)
    message.attr.add(name="num_ops", int64_val=6)
    encoded = [one.SerializeToString() for one in message.attr]
    assert Attributes().values(encoded) == {"num_ops": 5}
    assert Attributes().values(encoded[::-1]) == {"num_ops": 6}


@pytest.mark.parametrize(
    "other",
    [
        node(1, us=2, name="gemm", stream=7),
        node(1, us=3, name="gelu", stream=7),
        node(1, us=3, name="gemm", stream=8),
        collective(1, us=3, name="gemm", stream=7),
    ],
)
def test_nodes_are_told_apart_by_name_type_duration_and_attributes(tmp_path, other):
    gemm = [node(number, us=3, name="gemm", stream=7) for number in (0, 2)]
    ranked = rank_nodes(read(tmp_path, gemm[0], other, gemm[1]), 0)
    assert ranked.form.tolist() == [0, 1, 0]
    assert [form.name for form in ranked.forms] == ["gemm", other.name]
    assert [form.duration for form in ranked.forms] == [3e-6, other.duration_micros * 1e-6]
    assert len(lanes_of(ranked)) == 2


def test_what_many_nodes_lack_is_counted_node_by_node(tmp_path):
    nodes = [node(number, num_ops=9, name="gemm") for number in range(5)]
    notes = load_chakra(write(tmp_path, nodes)).coverage.notes
    assert any(note.startswith("5 compute nodes with operations") for note in notes)


def test_alike_calls_of_a_rank_are_matched_one_by_one(tmp_path):
    ranks = [[collective(number, us=rank + 1) for number in range(4)] for rank in range(3)]
    workload = load_chakra(write(tmp_path, *ranks)).workload
    assert workload.members.tolist() == [3, 3, 3, 3]
    assert workload.calls.sequence.tolist() == [0, 1, 2, 3]
    assert workload.calls.transfer.tolist() == [1e-6] * 4


def test_ids_of_any_order_name_the_same_waits(tmp_path):
    def waits(ids):
        first, second, third = ids
        nodes = [node(first), node(second, after=[first]), node(third, after=[first, second])]
        return rank_nodes(read(tmp_path, *nodes), 0).waits()

    assert waits((0, 1, 2)) == waits((5, 3, 4)) == waits((2, 1, 0)) == [[], [0], [0, 1]]


def test_dependencies_on_nodes_that_are_not_there_are_counted(tmp_path):
    ranked = rank_nodes(read(tmp_path, node(0), node(1, after=[0, 2])), 0)
    assert ranked.waits() == [[], [0]]
    assert ranked.unused == {"data dependencies on nodes that are not in the file": 1}


def test_a_damaged_attribute_is_told_by_its_message(tmp_path):
    message = node(1, name="x", note="abcd")
    data = encode_stream(MetadataMessage(version="0.0.4"), [node(0), message])
    path = tmp_path / "job.0.et"
    path.write_bytes(data.replace(b"abcd", b"\xff\xff\xff\xff"))
    with pytest.raises(TraceError, match=r"message 2 \(\d+ bytes\) is not a Chakra node"):
        read_messages(path)


def test_a_field_of_a_newer_schema_is_counted_among_nodes_decoded_together(tmp_path):
    newer = node(1).SerializeToString() + b"\x78\x01"
    data = body(node(0)) + bytes([len(newer)]) + newer + body(node(2))[len(body()) :]
    trace = decode_stream(tmp_path / "job.0.et", data)
    assert [one.id for one in trace.nodes] == [0, 1, 2]
    assert trace.unused == {"nodes with fields of a newer schema": 1}
    assert trace.nodes[1].SerializeToString() == newer


def test_a_node_that_was_read_is_the_bytes_that_were_written(tmp_path):
    written = collective(3, stream=20, pg_name="1", after=[], inputs="[1]")
    (found,) = read(tmp_path, written).nodes
    assert found.SerializeToString() == written.SerializeToString()
    assert whole(found) == written


def test_a_lane_that_is_busy_is_waited_for(tmp_path):
    """The first keeps the lane though it takes longer than what is ready at the same time."""
    long, short, other = node(0, us=5, stream=7), node(1, us=2, stream=7), node(2, us=1, stream=8)
    edges = load_chakra(write(tmp_path, [long, short, other])).workload.edges
    assert (edges.source.tolist(), edges.target.tolist()) == ([0], [1])


def test_a_node_that_waits_for_itself_is_a_cycle(tmp_path):
    with pytest.raises(TraceError, match=r"job\.0\.et: the data dependencies make a cycle: node"):
        load_chakra(write(tmp_path, [node(0), node(1, after=[1])]))


def test_of_calls_that_are_alike_a_message_names_the_right_one(tmp_path):
    """They share what is known of them, and each still stands where it does."""
    ranks = [[collective(n, name="sum", pg_name="0") for n in range(3 - rank)] for rank in range(2)]
    with pytest.raises(TraceError, match=r"job\.0\.et: node 2 'sum': rank 0 has 3 calls"):
        load_chakra(write(tmp_path, *ranks))


def test_a_comm_type_that_is_a_list_is_no_kind(tmp_path):
    nodes = [node(1, COLL, comm_type=[True], comm_size=8, us=3)]
    notes = load_chakra(write(tmp_path, nodes)).coverage.notes
    assert any("comm_type [True], which Chakra does not have" in one for one in notes)


def test_the_host_op_that_issues_a_call_is_no_call(tmp_path):
    """Old converters type ``c10d::allreduce_`` as they type the kernel that it launches."""
    issues = node(0, COLL, us=85, name="c10d::allreduce_(0)", is_cpu_op=True, tid=1)
    by_host = node(2, COLL, us=9, name="gloo", is_cpu_op=True, comm_type=0, comm_size=64)
    loaded = load_chakra(write(tmp_path, [issues, collective(1, after=[0]), by_host]))
    assert loaded.coverage.collectives == 2
    assert loaded.workload.what.tolist() == [What.HOST, What.COLLECTIVE, What.COLLECTIVE]
    assert loaded.workload.duration[0] == pytest.approx(85e-6)


def test_each_call_whose_kind_is_taken_from_its_name_is_counted(tmp_path):
    names = ["ncclDevKernel_AllReduce_Sum", "ncclDevKernel_AllReduce_Sum", "nccl_all_gather"]
    nodes = [node(n, COLL, comm_size=8, us=3, name=name) for n, name in enumerate(names)]
    loaded = load_chakra(write(tmp_path, [*nodes, collective(3)]))
    kinds = [loaded.workload.call_view(n).kind for n in range(4)]
    assert kinds[:3] == ["all_reduce", "all_reduce", "all_gather"]
    assert f"3 {NAMED_KIND}" in loaded.coverage.notes
