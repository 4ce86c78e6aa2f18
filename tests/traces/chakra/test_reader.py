"""What a Chakra trace means as a workload."""

import gzip
import json
import math

import numpy as np
import pytest

from collectives.algorithms import ring
from helpers.chakra_traces import (
    body,
    collective,
    host,
    node,
    receive,
    send,
    write,
    write_chakra_json,
)
from helpers.strategies import plan, switch_network
from simulator.engine.simulate import simulate
from simulator.schedule import Plan
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.chakra.files import is_chakra, read_messages
from traces.chakra.reader import load_chakra
from traces.chakra.schema import COLL, MEM_LOAD, METADATA, RECV, SEND
from traces.core.loaded import DOUBTFUL, ODD

WHOLE = {"pg_name": "0"}


def one_rank(tmp_path, *nodes):
    return load_chakra(write(tmp_path, nodes) / "job.0.et")


def names(workload, pairs=None):
    table = [workload.names[name] for name in workload.name]
    edges = zip(workload.edges.source, workload.edges.target, strict=True)
    return {(table[a], table[b]) for a, b in edges}


def ends(loaded, ranks=1):
    timeline = simulate(loaded.workload, switch_network(max(ranks, 2)), plan)
    table = [loaded.workload.names[name] for name in loaded.workload.name]
    return {
        (int(rank), name): end
        for rank, name, end in zip(loaded.workload.rank, table, timeline.end, strict=True)
    }


def test_nodes_become_ops_of_their_kind_and_lane(tmp_path):
    workload = one_rank(
        tmp_path,
        host(1, tid=5, us=3),
        node(2, after=[1], is_cpu_op=False, stream=7, us=10),
        node(3, after=[1], name="Memcpy HtoD", is_cpu_op=False, stream=9, us=4),
        node(4, MEM_LOAD, tensor_size=64, us=2),
        node(5, METADATA),
        node(6, us=2),
    ).workload
    assert [(op.what.name, op.lane) for op in workload.ops()] == [
        ("HOST", "thread 5"),
        ("COMPUTE", "stream 7"),
        ("COPY", "stream 9"),
        ("COPY", "memory"),
        ("HOST", "host"),
        ("COMPUTE", "compute"),
    ]
    assert workload.duration[:4] == pytest.approx([3e-6, 10e-6, 4e-6, 2e-6])


def test_a_kernels_tid_is_its_stream_where_no_host_thread_has_it(tmp_path):
    """Older converters wrote the stream there, newer ones the thread."""
    nodes = [host(1, tid=1), node(2, is_cpu_op=False, tid=20), node(3, is_cpu_op=False, tid=1)]
    lanes = [op.lane for op in one_rank(tmp_path, *nodes).workload.ops()]
    assert lanes == ["thread 1", "stream 20", "compute"]


def test_a_call_of_no_known_kind_and_no_duration_is_doubted(tmp_path):
    nodes = [node(0, us=5), node(1, COLL, is_cpu_op=False, comm_type=99, comm_size=8, after=[0])]
    for duration, doubted in ((0, True), (7, False)):
        nodes[1].duration_micros = duration
        notes = one_rank(tmp_path, *nodes).coverage.notes
        said = [note for note in notes if any(map(note.__contains__, DOUBTFUL))]
        assert bool(said) == doubted
        assert not said or said[0].startswith("1 calls with neither a size nor a duration")


def test_data_and_control_dependencies_both_hold(tmp_path):
    nodes = [node(2**64 - 1, us=5, stream=1), node(7, us=5, stream=2, after=[2**64 - 1])]
    nodes += [node(9, us=5, stream=3, control=[7])]
    found = ends(one_rank(tmp_path, *nodes))
    assert found[0, "node 9"] == pytest.approx(15e-6)


def test_control_dependencies_give_way_to_data_dependencies_and_are_counted(tmp_path):
    loaded = one_rank(tmp_path, node(1, control=[2]), node(2, after=[1]))
    assert names(loaded.workload) == {("node 1", "node 2")}
    key = "control dependencies, which contradict the data dependencies"
    assert loaded.coverage.unused == {key: 1}


def test_dangling_dependencies_are_counted_and_those_on_data_doubted(tmp_path):
    coverage = one_rank(tmp_path, node(1, after=[8, 9], control=[4])).coverage
    (doubt,) = [note for note in coverage.notes if any(map(note.__contains__, DOUBTFUL))]
    assert doubt == f"2 data dependencies on nodes that are not in the file; {ODD}"
    unused = coverage.unused
    assert unused == {
        "data dependencies on nodes that are not in the file": 2,
        "control dependencies on nodes that are not in the file": 1,
    }


def test_a_lane_runs_one_op_at_a_time_what_is_ready_first(tmp_path):
    nodes = [
        node(1, us=10, stream=1, is_cpu_op=False, after=[4]),
        node(2, us=10, stream=1, is_cpu_op=False, after=[3]),
        host(3, us=1, tid=1),
        host(4, us=5, tid=1, after=[3]),
    ]
    found = ends(one_rank(tmp_path, *nodes))
    assert found[0, "node 2"] == pytest.approx(11e-6)
    assert found[0, "node 1"] == pytest.approx(21e-6)


def test_a_lanes_order_makes_no_cycle_through_messages(tmp_path):
    """In file order rank 0 would compute what waits for rank 1 first, and rank 1 waits for it."""
    first = [
        receive(1, 1, 0, tag=1),
        node(2, after=[1], us=5),
        node(3, us=5),
        send(4, 0, 1, tag=2, after=[3]),
    ]
    second = [receive(1, 0, 1, tag=2), node(2, after=[1], us=5), send(3, 1, 0, tag=1, after=[2])]
    found = ends(load_chakra(write(tmp_path, first, second)), 2)
    assert found[0, "node 2"] > found[1, "node 2"] > found[0, "node 3"]


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("all_reduce", 1),
        ("reduce_scatter", 1),
        ("all_to_all", 1),
        ("broadcast", 1),
        ("all_gather", 3),
        ("gather", 3),
    ],
)
def test_size_is_that_of_nccl_tests(tmp_path, kind, times):
    """comm_size is what a rank puts in."""
    ranks = [[collective(1, kind, 600, **WHOLE)] for _ in range(3)]
    workload = load_chakra(write(tmp_path, *ranks)).workload
    call = workload.call_view(0)
    assert (call.kind, call.size, call.group.ranks) == (kind, 600 * times, (0, 1, 2))


def test_every_spelling_of_a_kind_is_read(tmp_path):
    nodes = [node(1, COLL, comm_type="ALL_GATHER", comm_size=8, **WHOLE)]
    block = [node(2, COLL, comm_type=8, comm_size=8, after=[1], **WHOLE)]
    workload = load_chakra(write(tmp_path, nodes + block, nodes + block)).workload
    assert [workload.call_view(n).kind for n in (0, 1)] == ["all_gather", "reduce_scatter"]


def test_collectives_without_a_kind_or_size_are_kept_and_reported(tmp_path):
    ranks = [
        [
            node(1, COLL, is_cpu_op=True, us=7, name="c10d::allreduce_"),
            node(2, COLL, comm_type=0, us=9 + rank, after=[1], **WHOLE),
            node(3, COLL, comm_type=77, us=1, after=[2]),
            node(4, COLL, comm_size=64, name="ncclKernel_AllReduce", after=[3], **WHOLE),
        ]
        for rank in range(2)
    ]
    loaded = load_chakra(write(tmp_path, *ranks))
    calls = [loaded.workload.call_view(n) for n in range(len(loaded.workload.calls))]
    told = sorted((call.kind, call.size) for call in calls if not math.isnan(call.size))
    assert told == [("all_reduce", 64)]
    unsized = [call for call in calls if math.isnan(call.size)]
    assert sorted(call.kind for call in unsized) == ["all_reduce", *["unknown"] * 2]
    assert next(c.transfer for c in unsized if c.kind == "all_reduce") == pytest.approx(9e-6)
    coverage = loaded.coverage
    assert (coverage.collectives, coverage.sizes_known, coverage.collectives_matched) == (4, 1, 2)
    text = " ".join(coverage.notes)
    assert "2 collectives without a kind" in text
    assert "comm_type 77" in text


def test_what_a_collective_took_is_what_the_last_to_arrive_saw(tmp_path):
    ranks = [[collective(1, us=us, **WHOLE)] for us in (142, 20)]
    loaded = load_chakra(write(tmp_path, *ranks))
    assert loaded.workload.calls.transfer[0] == pytest.approx(20e-6)
    assert any("waited 122 us" in note for note in loaded.coverage.notes)


def test_no_step_is_measured_where_no_starts_are_told(tmp_path):
    loaded = one_rank(tmp_path, node(1, us=5))
    assert math.isnan(loaded.measured_step)
    assert np.isnan(loaded.workload.measured_start).all()


def test_starts_that_some_files_tell_are_not_used_and_noted(tmp_path):
    loaded = load_chakra(write(tmp_path, [node(1, us=5, start=7)], [node(1, us=5)]))
    assert math.isnan(loaded.measured_step)
    assert "start times in 1 of 2 files are not used" in loaded.coverage.notes


def test_groups_are_told_by_astra_sims_file(tmp_path):
    ranks = [[collective(1, pg_name=str(1 + rank % 2))] for rank in range(4)]
    write(tmp_path, *ranks)
    (tmp_path / "groups of any name.json").write_text(json.dumps({"1": [2, 0], "2": [1, 3]}))
    workload = load_chakra(tmp_path).workload
    assert sorted(group.ranks for group in workload.groups) == [(1, 3), (2, 0)]
    alone = load_chakra(tmp_path / "job.3.et").workload
    assert alone.groups[0].ranks == (1, 3)


def test_groups_are_told_by_pytorchs_nodes(tmp_path):
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4},
        {"pg_name": "5", "pg_desc": "tp", "ranks": [1, 3]},
    ]
    values = f"['{json.dumps(config)}']"
    ranks = [
        [
            node(1, METADATA, name="## process_group:init ##", inputs=values),
            collective(2, pg_name="0", after=[1]),
            *([collective(3, pg_name="5", after=[2])] if rank % 2 else []),
        ]
        for rank in range(4)
    ]
    workload = load_chakra(write(tmp_path, *ranks)).workload
    groups = [(group.ranks, group.label) for group in workload.groups]
    assert groups == [((0, 1, 2, 3), "default_pg"), ((1, 3), "tp")]


def test_rank_and_group_are_told_by_record_param_comms(tmp_path):
    """As PyTorch writes it: the first rank, the stride and the size of the group stand last."""
    for file, rank in ((0, 1), (1, 0)):
        inputs = f"[[[1]], [1, False], ['3', 'dp'], {rank}, 'allreduce', [], [], 2, 4, 2]"
        nodes = [host(1, name="record_param_comms", inputs=inputs), collective(2, pg_name="3")]
        (tmp_path / f"job.{file}.et").write_bytes(body(*nodes))
    loaded = load_chakra(tmp_path)
    assert loaded.coverage.ranks == (2, 6)
    assert loaded.workload.groups[0].ranks == (2, 6)


def test_without_a_group_it_is_the_whole_job_and_counted(tmp_path):
    ranks = [[collective(1, involved_dim=[True]), collective(2, after=[1])] for _ in range(2)]
    coverage = load_chakra(write(tmp_path, *ranks)).coverage
    assert any(note.startswith("4 calls without a group") for note in coverage.notes)
    assert coverage.collectives == coverage.collectives_matched == 2


@pytest.mark.parametrize("names", [("7", "7"), ("7", "8")])
def test_groups_of_several_names_that_no_file_describes_are_doubted(tmp_path, names):
    ranks = [[collective(1, pg_name=names[0]), collective(2, pg_name=names[1])] for _ in range(2)]
    doubt = f"2 groups that no file describes are read as all ranks; {ODD}"
    assert (doubt in load_chakra(write(tmp_path, *ranks)).coverage.notes) == (len({*names}) > 1)


def test_some_dimensions_of_a_network_nobody_tells_are_noted(tmp_path):
    ranks = [[collective(1, involved_dim=[True, False])] for _ in range(2)]
    notes = load_chakra(write(tmp_path, *ranks)).coverage.notes
    assert any(note.startswith("2 calls on some dimensions") for note in notes)


def test_collectives_of_one_rank_alone_cost_what_was_measured(tmp_path):
    loaded = one_rank(tmp_path, collective(1, us=50))
    call = loaded.workload.call_view(0)
    assert (call.kind, call.transfer) == ("all_reduce", pytest.approx(50e-6))
    assert ends(loaded)[0, "node 1"] == pytest.approx(50e-6)
    assert loaded.coverage.sizes_known == 1


def test_messages_are_matched_by_source_target_and_tag(tmp_path):
    sends = [send(1, 0, 1, tag=9, size=10), send(2, 0, 1, tag=4, size=20, after=[1])]
    gets = [receive(1, 0, 1, tag=4, size=20), receive(2, 0, 1, tag=9, size=10)]
    workload = load_chakra(write(tmp_path, sends, gets)).workload
    size = {
        (op.rank, op.name): workload.calls.size[op.call] for op in workload.ops() if op.call >= 0
    }
    assert size == {(0, "node 1"): 10, (0, "node 2"): 20, (1, "node 1"): 20, (1, "node 2"): 10}
    assert [op.what for op in workload.ops()] == [What.SEND] * 2 + [What.RECEIVE] * 2
    assert all(group.ranks == (0, 1) for group in workload.groups)


def test_ends_of_messages_name_one_tag(tmp_path):
    ranks = [[send(1, 0, 1, tag=4)], [receive(1, 0, 1, tag=5)]]
    with pytest.raises(TraceError, match=r"rank 0 has 1 calls .* rank 1 has 0"):
        load_chakra(write(tmp_path, *ranks))


def test_a_file_that_is_named_as_a_rank_and_is_none_is_refused(tmp_path):
    folder = write(tmp_path, [node(1, us=3)])
    (folder / "notes.json").write_text("[]")
    assert load_chakra(folder).coverage.ranks == (0,)
    (folder / "job.1.et").write_text('{"nodes": []}')
    with pytest.raises(TraceError, match=r"job\.1\.et: no Chakra trace, though named as one"):
        load_chakra(folder)


def test_a_message_of_a_pair_needs_no_peer(tmp_path):
    """PyTorch's converter gives messages their group only."""
    (tmp_path / "comm_group.json").write_text('{"7": [0, 1]}')
    ranks = [[node(1, SEND, comm_size=5, pg_name="7")], [node(1, RECV, comm_size=5, pg_name="7")]]
    workload = load_chakra(write(tmp_path, *ranks)).workload
    assert workload.call_view(0).kind == "send_receive"
    lone = [[node(1, SEND, comm_size=5, us=3)], [node(1, us=1)]]
    coverage = load_chakra(write(tmp_path, *lone)).coverage
    assert any("messages without a peer" in note for note in coverage.notes)


def measured(rank):
    begin = 1_000_000 + 40 * rank
    return [
        host(1, start=begin, us=10, tid=1),
        node(2, start=begin + 15, us=30, after=[1], is_cpu_op=False, stream=7),
        collective(3, start=begin + 45, us=60 - 40 * rank, after=[2], stream=7, **WHOLE),
        host(4, start=begin + 35, us=5, tid=1, after=[1]),
    ]


def test_starts_that_are_told_are_replayed_and_explained(tmp_path):
    loaded = load_chakra(write(tmp_path, measured(0), measured(1)))
    assert loaded.measured_step == pytest.approx(105e-6)
    assert loaded.workload.calls.transfer[0] == pytest.approx(20e-6)
    assert loaded.coverage.starts == {"launch": 2, "stream": 2}
    fixed = Plan(ring.all_reduce(2), overhead=20e-6)
    workload = loaded.workload.with_calls(size=np.zeros(1))
    timeline = simulate(workload, switch_network(2, latency=0.0), lambda *_: fixed)
    assert timeline.start == pytest.approx(loaded.workload.measured_start, abs=1e-9)
    assert timeline.makespan == pytest.approx(105e-6)


def test_a_delay_is_the_lag_of_what_was_last_to_allow_a_start(tmp_path):
    nodes = [
        host(1, start=1, us=10, tid=1),
        node(2, start=1, us=20, is_cpu_op=False, stream=7),
        node(3, start=31, us=5, after=[1, 2], is_cpu_op=False, stream=9),
        node(4, start=200, us=5, is_cpu_op=False, stream=11),
    ]
    loaded = one_rank(tmp_path, *nodes)
    assert sorted(loaded.workload.edges.lag) == pytest.approx([0, 10e-6])
    assert ends(loaded)[0, "node 3"] == pytest.approx(35e-6)
    assert ends(loaded)[0, "node 4"] == pytest.approx(204e-6)
    assert loaded.coverage.starts == {"wait": 1, "unexplained": 2}


def test_a_start_of_zero_among_times_of_day_is_none(tmp_path):
    day = 1_700_000_000_000_000
    nodes = [host(1, start=day, us=10), host(2, us=5, after=[1]), host(3, start=day + 20, us=1)]
    loaded = one_rank(tmp_path, *nodes)
    assert loaded.workload.measured_start == pytest.approx([0, 10e-6, 20e-6], abs=1e-9)
    early = [host(1, us=10), host(2, us=5, start=20)]
    assert one_rank(tmp_path, *early).measured_step == pytest.approx(25e-6)


def test_calls_of_which_no_stream_is_told_may_overlap(tmp_path):
    ranks = [[collective(n, **WHOLE) for n in range(2)] for _ in range(2)]
    assert not len(load_chakra(write(tmp_path, *ranks)).workload.edges.target)


def test_the_last_number_of_a_name_is_the_rank(tmp_path):
    (tmp_path / "run 3 of 20251121.7.et").write_bytes(body(node(1)))
    assert load_chakra(tmp_path).coverage.ranks == (7,)


def test_dependencies_that_starts_contradict_are_counted(tmp_path):
    nodes = [host(1, start=1, us=50), node(2, start=10, us=5, after=[1], is_cpu_op=False)]
    loaded = one_rank(tmp_path, *nodes)
    key = "dependencies whose source ends after the start that waits for it"
    assert loaded.coverage.unused == {key: 1}
    assert loaded.coverage.starts_explained == 0


def test_gzip_and_json_are_the_same_trace(tmp_path):
    trace = read_messages(write(tmp_path, measured(0)) / "job.0.et")
    plain = load_chakra(tmp_path / "job.0.et")
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / "rank 0"
    packed.write_bytes(gzip.compress((tmp_path / "job.0.et").read_bytes()))
    (tmp_path / "json").mkdir()
    text = tmp_path / "json" / "x.json"
    write_chakra_json(trace, text)
    for other in (packed, text):
        loaded = load_chakra(other)
        assert loaded.coverage.starts == plain.coverage.starts
        assert loaded.workload.duration.tolist() == plain.workload.duration.tolist()
        assert [n.SerializeToString() for n in read_messages(other).nodes] == [
            n.SerializeToString() for n in trace.nodes
        ]


def test_the_feeders_json_is_read(tmp_path):
    graph = [
        {"Id": 3, "Name": "a", "NodeType": 4, "runtime": 5, "data_deps": [], "is_cpu_op": True},
        {"Id": 9, "Name": "b", "NodeType": 7, "data_deps": [3], "comm_type": 2, "comm_size": 8},
    ]
    for rank in range(2):
        (tmp_path / f"x.{rank}.json").write_text(json.dumps({"workload_graph": graph}))
    workload = load_chakra(tmp_path).workload
    assert names(workload) == {("a", "b")}
    assert workload.call_view(0).size == 16


def test_an_old_files_metadata_is_read(tmp_path):
    """The first schema had the attributes where the version stands now."""
    attribute = b"\x0a\x06schema\xea\x01\x051.0.1"
    old = b"\x0a" + bytes([len(attribute)]) + attribute
    path = tmp_path / "x.0.et"
    path.write_bytes(bytes([len(old)]) + old + body(node(1, us=2))[8:])
    assert is_chakra(path.read_bytes())
    metadata = read_messages(path).metadata
    assert (metadata.attr[0].name, metadata.attr[0].string_val) == ("schema", "1.0.1")


def test_it_has_no_steps(tmp_path):
    write(tmp_path, [node(1)])
    with pytest.raises(TraceError, match="no step 3: a Chakra trace has no steps"):
        load_chakra(tmp_path, "3")
    assert load_chakra(tmp_path, "median").coverage.step == "all"


@pytest.mark.parametrize(
    ("begun", "lasted", "transfer", "own"), [(900, 10, 50, 10), (80, 100, 80, 0)]
)
def test_a_message_moves_from_when_it_was_sent_until_it_was_there(
    tmp_path, begun, lasted, transfer, own
):
    """Chakra's sends do not wait: a receiver that comes later took its own time."""
    ranks = (
        [send(1, 0, 1, start=100, us=50), host(2, start=2000, us=1)],
        [receive(1, 0, 1, start=begun, us=lasted), host(2, start=2000, us=1)],
    )
    workload = load_chakra(write(tmp_path, *ranks)).workload
    assert workload.calls.eager.all()
    assert workload.calls.transfer == pytest.approx(transfer * 1e-6)
    (late,) = np.flatnonzero(workload.what == What.RECEIVE)
    assert workload.duration[late] == pytest.approx(own * 1e-6, abs=1e-12)
