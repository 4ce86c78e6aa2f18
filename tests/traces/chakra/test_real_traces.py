"""Real Chakra traces, where they are at hand."""

import re
import shutil
from collections import Counter

import numpy as np
import pytest

from helpers.chakra_traces import whole, write_chakra_json
from helpers.places import SHARED
from helpers.strategies import plan, switch_network
from helpers.work import python_calls
from simulator.engine.simulate import simulate
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.chakra.files import read_messages
from traces.chakra.reader import load_chakra
from traces.chakra.schema import COLL, attribute_value
from traces.chakra.stream import decode_stream, encode_stream
from traces.chakra.write import write_chakra
from traces.kineto.reader import unpack

TRACES = SHARED / "traces" / "chakra"
PAIR = ("two_gpu.0.et.gz", "two_gpu.1.et.gz")
OLD, TWIN = "chakra.0.et.gz", "chakra.0.json.gz"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not at hand")


@pytest.fixture
def pair(tmp_path):
    """The two ranks by other names: the files tell their ranks."""
    for name, other in zip(PAIR, ("b", "a"), strict=True):
        shutil.copyfile(TRACES / name, tmp_path / other)
    return load_chakra(tmp_path)


@pytest.mark.parametrize("name", [*PAIR, OLD])
def test_messages_are_written_as_they_were_read(name):
    """Every field of the schema in use has its right number and type."""
    data = unpack(TRACES / name)
    trace = decode_stream(TRACES / name, data)
    assert trace.unused == {}
    assert encode_stream(trace.metadata, trace.nodes) == data


def test_parsing_takes_a_few_calls_a_node():
    data = unpack(TRACES / OLD)
    nodes = decode_stream(TRACES / OLD, data).nodes
    assert python_calls(lambda: decode_stream(TRACES / OLD, data)) < 20 * len(nodes)


def test_two_ranks_are_one_job(pair):
    assert pair.coverage.ranks == (0, 1)
    assert len(pair.workload) == 2 * 1634
    calls = [pair.workload.call_view(n) for n in range(len(pair.workload.calls))]
    assert [(c.kind, c.size, c.group.ranks, c.dtype) for c in calls] == [
        ("all_reduce", 2.0**32, (0, 1), "float")
    ] * 2
    assert [c.transfer for c in calls] == pytest.approx([19.899e-3, 20.031e-3])
    assert pair.coverage.collectives_matched == 2
    assert any("waited 122.1 ms" in note for note in pair.coverage.notes)


def test_measured_durations_are_replayed_one_kernel_at_a_time(pair):
    """All kernels are on stream 7, and cannot take less than their sum."""
    workload = pair.workload
    timeline = simulate(workload, switch_network(2, bandwidth=1e12), plan)
    assert (timeline.end - timeline.start)[workload.what == What.COMPUTE] == pytest.approx(
        workload.duration[workload.what == What.COMPUTE]
    )
    for rank in range(2):
        kernels = (workload.rank == rank) & (workload.what == What.COMPUTE)
        assert timeline.makespan >= workload.duration[kernels].sum()


def test_every_node_of_the_old_file_is_there(tmp_path):
    loaded = load_chakra(TRACES / OLD)
    assert len(loaded.workload) == 3664
    assert (loaded.coverage.collectives, loaded.coverage.sizes_known) == (7, 7)
    kinds = Counter(loaded.workload.call_view(n).kind for n in range(7))
    assert kinds == {"broadcast": 2, "all_reduce": 5}
    assert loaded.coverage.unused == {
        "control dependencies on nodes that are not in the file": 1277,
        "control dependencies, which contradict the data dependencies": 2387,
    }


def test_the_json_twin_says_the_same_node_by_node():
    """Its maker replaced id by Id and name by Name, in the text of the names too."""
    one, other = read_messages(TRACES / OLD).nodes, read_messages(TRACES / TWIN).nodes
    assert len(one) == len(other) == 3664
    for mine, theirs in zip(one, other, strict=True):
        assert mine.id == theirs.id
        assert mine.name.lower() == theirs.name.lower()
        assert (mine.type, mine.duration_micros) == (theirs.type, theirs.duration_micros)
        assert list(mine.data_deps) == list(theirs.data_deps)
        on_host = [
            attribute_value(next(one for one in whole(node).attr if one.name == "is_cpu_op"))
            for node in (mine, theirs)
        ]
        assert on_host[0] == on_host[1]


@pytest.mark.parametrize("name", [PAIR[0], OLD])
def test_written_as_json_and_read_again_it_is_the_same(name, tmp_path):
    trace = read_messages(TRACES / name)
    write_chakra_json(trace, tmp_path / "x.json")
    again = read_messages(tmp_path / "x.json")
    assert encode_stream(again.metadata, again.nodes) == encode_stream(trace.metadata, trace.nodes)


@pytest.mark.parametrize("name", [*PAIR, OLD, TWIN])
def test_read_written_and_read_it_is_the_same(name, tmp_path):
    loaded = load_chakra(TRACES / name)
    write_chakra(loaded.workload, tmp_path)
    workload = load_chakra(tmp_path).workload
    for column in ("what", "rank", "call", "duration"):
        assert getattr(workload, column).tolist() == getattr(loaded.workload, column).tolist()
    assert workload.edges.target.tolist() == loaded.workload.edges.target.tolist()
    assert workload.groups == loaded.workload.groups


def test_every_file_is_answered_or_refused_in_a_line():
    for path in [*sorted(TRACES.iterdir()), TRACES]:
        if re.fullmatch(r".*\.(et|json)\.gz", path.name):
            nodes = [n for n in read_messages(path).nodes if not n.name.startswith("c10d::")]
            assert load_chakra(path).coverage.collectives == sum(n.type == COLL for n in nodes)
            continue
        with pytest.raises(TraceError) as error:
            load_chakra(path)
        assert str(TRACES) in str(error.value)
        assert "\n" not in str(error.value)


def test_a_ring_made_of_messages_in_which_everybody_sends_first_does_not_stand_still():
    folder = SHARED / "traces" / "other" / "astra_custom_ring8"
    if not folder.is_dir():
        pytest.skip("the ring is not at hand")
    workload = load_chakra(folder).workload
    assert workload.calls.eager.all()
    timeline = simulate(workload, switch_network(8), plan)
    sends = np.flatnonzero(workload.what == What.SEND)
    first = [timeline.start[sends[workload.rank[sends] == rank]].min() for rank in range(8)]
    assert first == [first[0]] * 8
    assert timeline.makespan > max(timeline.end[sends]) - 1e-12
