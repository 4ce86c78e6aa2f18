"""Damaged, crafted and contradictory Chakra files: a clear error, soon, or a whole answer."""

import gzip
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.chakra_traces import body, collective, host, node, receive, send, write
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import LimitError, TraceError
from simulator.workload import What
from traces.chakra.files import is_chakra, read_messages
from traces.chakra.reader import load_chakra
from traces.chakra.schema import COLL, MetadataMessage
from traces.chakra.stream import encode_stream
from traces.chakra.write import write_chakra

WHOLE = {"pg_name": "0"}
GOOD = body(
    host(1, us=5, tid=1),
    node(2, us=9, after=[1], stream=7, is_cpu_op=False),
    collective(3, us=4, after=[2], stream=7, **WHOLE),
    send(4, 0, 1, after=[3]),
)


def refusal(path):
    """The error of a file, which names it in one line; None if it is answered."""
    said = None
    try:
        load_chakra(path)
    except (TraceError, LimitError) as error:
        said = str(error)
    assert said is None or (str(path) in said and "\n" not in said)
    return said


def of(tmp_path, data, name="x.0.et"):
    path = tmp_path / name
    path.write_bytes(data)
    return refusal(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_cut_is_refused_or_ends_between_messages(tmp_path, packed):
    whole = len(read_messages(_write(tmp_path, GOOD)).nodes)
    data = gzip.compress(GOOD, mtime=0) if packed else GOOD
    answered = 0
    for length in range(len(data)):
        path = tmp_path / "cut.0.et"
        path.write_bytes(data[:length])
        if refusal(path) is None:
            assert len(read_messages(path).nodes) < whole
            answered += 1
    assert answered == (0 if packed else whole)


def _write(tmp_path, data):
    path = tmp_path / "x.0.et"
    path.write_bytes(data)
    return path


@tries(400)
@given(place=st.integers(0, len(GOOD) * 8 - 1))
def test_a_flipped_bit_is_refused_or_answered(tmp_path_factory, place):
    data = bytearray(GOOD)
    data[place // 8] ^= 1 << (place % 8)
    of(tmp_path_factory.mktemp("bit"), bytes(data))


TIMED = body(
    host(1, us=5, tid=1, start=1_700_000_000_000_000),
    node(2, us=9, after=[1], stream=7, is_cpu_op=False, start=1_700_000_000_000_007),
    collective(3, us=4, after=[2], stream=7, start=1_700_000_000_000_020, **WHOLE),
)


@tries(400)
@given(place=st.integers(0, len(TIMED) * 8 - 1))
def test_a_flipped_bit_in_times_is_refused_or_answered(tmp_path_factory, place):
    data = bytearray(TIMED)
    data[place // 8] ^= 1 << (place % 8)
    of(tmp_path_factory.mktemp("bit"), bytes(data))


def own(folder):
    """A workload of one rank, as this project writes it."""
    builder = WorkloadBuilder(job_ranks=2)
    first = builder.op(What.HOST, rank=0, lane="a", name="a", duration=1e-6, ready=1e-6)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1), "g"), 3, 8.0, "Float", 1e-6))
    joins = builder.op(What.COLLECTIVE, rank=0, lane="b", name="b", duration=0.0, call=call)
    builder.edge(first, joins, lag=2e-6)
    return write_chakra(builder.build(), folder)[0]


@settings(max_examples=500)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
@pytest.mark.slow
def test_a_flipped_bit_in_what_was_written_here_is_refused_or_answered(
    tmp_path_factory, place, bit
):
    path = own(tmp_path_factory.mktemp("own"))
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))
    refusal(path)
    refusal(path.parent)


@tries(300)
@given(data=st.binary(max_size=300))
def test_noise_is_refused(tmp_path_factory, data):
    of(tmp_path_factory.mktemp("noise"), data)
    of(tmp_path_factory.mktemp("noise"), body() + data)


@tries(200)
@given(text=st.text(max_size=80))
def test_noise_in_json_is_refused(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("noise")
    of(folder, ('{"workload_graph": ' + text).encode(), "x.0.json")
    of(folder, ("{}{" + text).encode(), "y.0.json")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\xff" * 12, "its length is not a varint"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "but 0 are left"),
        (body() + b"\xff\xff\xff\xff\x0f\x0a", "declares 4294967295 bytes, but 1 are left"),
        (b"\0" * 50_000, "node id 0 occurs twice"),
        (b"\x03\x0a\xff\xff", "is not a Chakra trace"),
        (body() + b"\x03\x08\x01", "declares 3 bytes, but 2 are left"),
        (body() + b"\x02\x0a\x05", "message 1 (2 bytes) is not a Chakra node"),
        (gzip.compress(GOOD, mtime=0)[:-9], "cut short"),
        (gzip.compress(b"\0" * 1_000_000, mtime=0) * 50, "limit of 400"),
    ],
)
def test_damage_is_told_by_its_place(tmp_path, data, says):
    assert says in of(tmp_path, data)


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"ids": 3}, "node 0: "),
        ({"id": "1", "type": "WHAT_NODE"}, "node 0: "),
        ({"attr": [{"name": "a", "int64Val": "x"}]}, "node 0: "),
        ([1], "node 0: "),
        (7, "node 0: "),
    ],
)
def test_json_that_is_not_of_the_schema_is_told_in_a_line(tmp_path, node, says):
    said = of(tmp_path, ('{"version": "1"}' + "{}" + json.dumps(node)).encode(), "x.0.json")
    assert said is not None
    assert says.replace("0", "1") in said


def test_the_storage_of_a_newer_schema_is_passed_over_in_json_too(tmp_path):
    text = '{"version": "1"}{"id": "4", "type": "STORAGE_NODE", "storage": {"level": "FS"}}'
    assert of(tmp_path, text.encode(), "x.0.json") is None


def test_deep_json_is_refused(tmp_path):
    for data in ('{"workload_graph": ' + "[" * 100_000, '{"attr": ' + "[" * 100_000):
        assert of(tmp_path, data.encode(), "x.0.json") is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"Id": -1},
        {"Id": 2**64},
        {"Id": "one"},
        {"Name": "no id"},
        {"Id": 1, "runtime": -5},
        {"Id": 1, "data_deps": [-1]},
        {"Id": 1, "NodeType": 2**40},
        {"Id": 1, "NodeType": 7, "comm_type": 0, "comm_size": 2**70},
    ],
)
def test_numbers_that_are_none_are_refused(tmp_path, fields):
    data = json.dumps({"workload_graph": [fields]}).encode()
    assert of(tmp_path, data, "x.0.json") is not None


def test_cycles_are_named(tmp_path):
    ring = [node(n, name=f"op {n}", after=[(n + 1) % 3]) for n in range(3)]
    said = of(tmp_path, body(*ring, node(9)))
    assert "make a cycle" in said
    assert all(f"'op {n}'" in said for n in range(3))
    assert "make a cycle" in of(tmp_path, body(node(4, after=[4])))


def test_a_long_cycle_and_a_long_chain_take_no_time(tmp_path):
    long = [node(n, after=[n + 1]) for n in range(10_000)]
    assert of(tmp_path, body(*long[:-1], node(9_999))) is None
    assert "(10000 in all)" in of(tmp_path, body(*long[:-1], node(9_999, after=[0])))


def test_an_id_stands_once(tmp_path):
    said = of(tmp_path, body(node(5, name="a"), node(5, name="b")))
    assert "node id 5 occurs twice ('a' and 'b')" in said


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ([collective(1, size=8, **WHOLE)], [collective(1, size=9, **WHOLE)], "8 B"),
        ([collective(1, **WHOLE)], [collective(1, "broadcast", **WHOLE)], "all_reduce of"),
        ([collective(1, **WHOLE)], [node(1)], "rank 1 has 0"),
        ([send(1, 0, 1)], [node(1)], "rank 1 has 0"),
        ([send(1, 0, 1)], [receive(1, 0, 2)], "comm_dst is 2, but this is rank 1"),
        ([send(1, 1, 0)], [node(1)], "comm_src is 1, but this is rank 0"),
        ([collective(1, size=-4, **WHOLE)], [node(1)], "comm_size -4 is not a number of bytes"),
        ([send(1, 0, -3)], [node(1)], "comm_dst -3 is not another rank"),
        ([send(1, 0, 0)], [node(1)], "comm_dst 0 is not another rank"),
    ],
)
def test_ranks_that_disagree_are_refused(tmp_path, one, other, says):
    with pytest.raises(TraceError) as error:
        load_chakra(write(tmp_path, one, other))
    assert says in str(error.value)
    assert "job." in str(error.value)


def test_a_rank_that_is_not_of_its_group_is_refused(tmp_path):
    (tmp_path / "groups.json").write_text('{"3": [1, 2]}')
    with pytest.raises(TraceError, match="pg_name '3' is ranks 1, 2, and this is rank 0"):
        load_chakra(write(tmp_path, [node(1, COLL, comm_type=0, comm_size=1, pg_name="3")]))


@pytest.mark.parametrize(
    "text",
    ['{"3": [1, 1]}', '{"3": [-1]}', '{"3": []}', '{"x": [0]}', '{"3": 1}', "{", '{"1": [1e9]}'],
)
def test_what_is_no_table_of_groups_is_skipped(tmp_path, text):
    (tmp_path / "groups.json").write_text(text)
    coverage = load_chakra(write(tmp_path, [node(1)])).coverage
    assert [reason for _, reason in coverage.skipped] == ["no Chakra trace"]


def test_two_tables_of_groups_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"1": [0]}')
    with pytest.raises(TraceError, match=r"b\.json: a second table of groups, beside a\.json"):
        load_chakra(write(tmp_path, [node(1)]))
    notes = load_chakra(tmp_path / "job.0.et").coverage.notes
    assert "several tables of groups are in the same directory: none is used" in notes


def test_what_is_not_there_is_said(tmp_path):
    for path in (tmp_path / "no.0.et", tmp_path / "no folder" / "x.0.et"):
        assert "cannot be read" in refusal(path)


def test_a_damaged_file_beside_the_traces_is_skipped(tmp_path):
    (tmp_path / "else.gz").write_bytes(gzip.compress(b'{"1": [0]}')[:-12])
    coverage = load_chakra(write(tmp_path, [node(1)])).coverage
    assert len(coverage.skipped) == 1


def test_each_rank_has_one_file(tmp_path):
    (tmp_path / "x.1.et").write_bytes(body(node(1)))
    (tmp_path / "y.1.et.gz").write_bytes(gzip.compress(body(node(1))))
    with pytest.raises(TraceError, match=r"y\.1\.et\.gz: also rank 1, like .*x\.1\.et"):
        load_chakra(tmp_path)


def test_a_missing_rank_is_an_error_where_most_are_there(tmp_path):
    write(tmp_path, *([[node(1)]] * 4))
    (tmp_path / "job.2.et").unlink()
    with pytest.raises(TraceError, match="no file of rank 2 among those of ranks 0, 1, 3"):
        load_chakra(tmp_path)
    (tmp_path / "job.0.et").unlink()
    (tmp_path / "job.1.et").unlink()
    assert load_chakra(tmp_path).coverage.ranks == (3,)


def test_a_file_without_a_number_is_a_rank_only_alone(tmp_path):
    (tmp_path / "trace.et").write_bytes(body(node(1)))
    assert load_chakra(tmp_path).coverage.ranks == (0,)
    (tmp_path / "trace.1.et").write_bytes(body(node(1)))
    with pytest.raises(TraceError, match=r"trace\.et: which rank is this"):
        load_chakra(tmp_path)


def test_a_directory_without_a_trace_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(TraceError, match="no Chakra trace in this directory"):
        load_chakra(tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b'{"traceEvents": []}',
        b'{"schema": "1.0.2", "nodes": []}',
        b'{"1": [0, 1]}',
        b"num_ranks 2\n",
        b"\x0a\x10\x08\x01\x12\x0c/host:CPU\0\0\0",
        zlib.compress(b"x" * 100),
        b"SQLite format 3\0" + b"\0" * 84,
        b"PK\x03\x04" + b"\0" * 60,
        b"PAR1" + b"\x15\x04" * 30,
        b"plain text, of which there is much\n" * 20,
        b"\0" * 1000,
        b"\xff\xff\x03" + b"\x1a\x05field" * 1000,  # a message longer than what is seen of it
    ],
)
def test_other_formats_are_not_taken_for_chakra(head):
    assert not is_chakra(head)


@pytest.mark.parametrize("version", ["0.0.4", ""])
def test_chakra_is_recognised(version):
    assert is_chakra(body(node(1, us=1), version=version))
    assert is_chakra(b'{"workload_graph": [')
    assert is_chakra(b' {"version": "1"}\n{"id": "1"}')


def test_chakra_is_recognised_by_the_beginning_of_long_metadata():
    metadata = MetadataMessage(version="1")
    metadata.attr.add(name="a").int64_val = 1
    metadata.attr.add(name="long").string_val = "x" * 200_000
    assert is_chakra(encode_stream(metadata, [node(1)])[: 1 << 16])


def test_fields_of_a_newer_schema_are_counted(tmp_path):
    storage = b"\x08\x07\x18\x04\x5a\x02\x08\x01"
    newer = b"\x08\x08\x18\x04\xf2\x01\x01x"
    path = _write(tmp_path, body() + b"".join(bytes([len(n)]) + n for n in (storage, newer)))
    assert load_chakra(path).coverage.unused == {"nodes with fields of a newer schema": 1}
