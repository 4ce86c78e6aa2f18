"""Execution Traces of PyTorch: every schema says the same, and broken files are refused."""

import contextlib
import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.places import SHARED
from helpers.pytorch_et_files import SCHEMAS, Program, tensor
from simulator.support.errors import LimitError, TraceError
from traces.core.files import is_execution_trace
from traces.load import load, recognised
from traces.pytorch_et.reader import (
    Tensors,
    data_edges,
    execution_summary,
    read_execution_trace,
    refuse_to_replay,
)

TRACES = SHARED / "traces"
ARCHIVE = TRACES / "chakra" / "pytorch_et_1.0.2-chakra.0.0.4.tgz"


def example(schema: str = SCHEMAS[-1]) -> Program:
    program = Program(schema)
    size = {"group_size": 2, "ranks": []}
    program.groups({"pg_name": "0", "pg_desc": "default_pg", "backend_id": 4711, **size})
    outer = program.op(
        "aten::linear",
        inputs=[(tensor(10, 20, 8), "Tensor(float)"), ("<None>", "None")],
        outputs=[(tensor(11, 21, 4), "Tensor(float)")],
    )
    program.op("aten::mm", outer, outputs=[(tensor(11, 21, 4), "Tensor(float)")])
    call = program.op("c10d::allreduce_")
    program.comm("allreduce", 1024, 2, call)
    program.comm("wait", 0, 2)
    return program


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_says_the_same(tmp_path: Path, schema: str) -> None:
    path = example(schema).write(tmp_path / "et.json")
    assert is_execution_trace(path.read_bytes()[: 1 << 16])
    found = read_execution_trace(path)
    assert (found.schema, found.process, len(found)) == (schema, 100, 8)
    names = [found.names[name] for name in found.name]
    parents = {names[row]: names[above] for row, above in enumerate(found.parent) if above >= 0}
    assert parents["aten::mm"] == "aten::linear"
    assert parents["record_param_comms"].startswith("[pytorch")
    assert found.record.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    reduce, wait = (one.record for one in found.comms)
    assert (reduce.collective, wait.collective) == ("allreduce", "wait")
    assert (reduce.in_elements, reduce.out_elements, reduce.group_size) == (1024, 1024, 2)
    assert reduce.group_key == "0"
    assert found.groups["0"].ranks == (0, 1)
    assert found.unused == {}
    calls = {call.collective: call for call in execution_summary(found).calls}
    assert (calls["allreduce"].size, calls["allreduce"].count) == (2048.0, 1)
    assert calls["wait"].size is None
    assert execution_summary(found).records == 2


def test_a_mark_of_utf_8_is_passed_over_and_a_directory_refused(tmp_path: Path) -> None:
    plain = example().write(tmp_path / "et.json")
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert recognised(marked) == "pytorch_et"
    assert len(read_execution_trace(marked)) == len(read_execution_trace(plain))
    with pytest.raises(TraceError, match="have no times"):
        load(tmp_path)


def test_groups_with_evenly_spaced_ranks_are_listed(tmp_path: Path) -> None:
    program = example()
    attrs = {"collective_name": "allgather", "pg_size": 3, "pg_name": "7", "dtype": "Float"}
    program.op("record_param_comms", global_rank_start=1, global_rank_stride=4, **attrs)
    (*_, comm) = read_execution_trace(program.write(tmp_path / "et.json")).comms
    assert comm.record.group_ranks == (1, 5, 9)


def test_data_flow_from_the_last_writer_that_is_not_the_readers_caller(tmp_path: Path) -> None:
    program = Program()
    first = program.op("write", outputs=[(tensor(1, 9, 4), "Tensor(float)")])
    caller = program.op("caller", outputs=[(tensor(2, 9, 4), "Tensor(float)")])
    inner = program.op("read", caller, inputs=[([tensor(3, 9, 4)], "GenericList[Tensor(float)]")])
    after = program.op("read again", inputs=[(tensor(4, 9, 4), "Tensor(float)")])
    program.op("read another", inputs=[(tensor(5, 8, 4), "Tensor(float)")])
    found = read_execution_trace(program.write(tmp_path / "et.json"))
    source, target = data_edges(found.inputs, found.outputs, found.parent)
    pairs = [(int(found.id[a]), int(found.id[b])) for a, b in zip(source, target, strict=True)]
    assert pairs == [(first, inner), (caller, after)]


def test_broken_links_are_counted_and_their_nodes_kept(tmp_path: Path) -> None:
    program = example()
    program.op("orphan", parent=999)
    program.op("own child", parent=program.last + 1)
    program.op("forward lost", fw_parent=888)
    found = read_execution_trace(program.write(tmp_path / "et.json"))
    assert len(found) == 11
    assert found.unused == {"nodes whose caller is missing": 1, "nodes whose forward is missing": 1}


def test_an_archive_is_read_without_what_macos_adds(tmp_path: Path) -> None:
    path = tmp_path / "et.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in (
            ("._et.json", b"Mac OS X"),
            ("et.json", json.dumps(example().document()).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert len(read_execution_trace(path)) == 8
    assert is_execution_trace(gzip.decompress(path.read_bytes())[: 1 << 16])


def test_a_trace_without_times_is_not_replayed(tmp_path: Path) -> None:
    path = example().write(tmp_path / "et.json")
    with pytest.raises(TraceError, match=r"8 nodes, 2 communication records\) has no times") as one:
        refuse_to_replay(path, "median")
    assert "\n" not in str(one.value)


@pytest.mark.skipif(not ARCHIVE.is_file(), reason="the real traces are not at hand")
def test_the_chakra_archive() -> None:
    assert is_execution_trace(gzip.decompress(ARCHIVE.read_bytes())[: 1 << 16])
    found = execution_summary(read_execution_trace(ARCHIVE))
    assert (found.schema, found.nodes, found.threads) == ("1.0.2-chakra.0.0.4", 263, 1)
    assert {(one.collective, one.count) for one in found.calls} == {
        ("all_gather", 10),
        ("wait", 10),
    }
    assert found.groups == (("0", (0, 1)),)
    assert found.records == 20


def changed(**fields: object) -> bytes:
    document = example().document()
    node = {**document["nodes"][0], **fields}  # type: ignore[index]
    return json.dumps({**document, "nodes": [node, *document["nodes"][1:]]}).encode()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no PyTorch execution trace"),
        (b'{"traceEvents": []}', "no PyTorch execution trace"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": [', "broken"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": [{"id": "x"}]}', "broken.*id"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": ' + b"[" * 100_000, "broken"),
        (changed(id=3), "two nodes have id 3"),
        (changed(id=2**63), "not a 64-bit number"),
        (changed(inputs={"values": [1], "types": [], "shapes": []}), "node 8 .*1 values, but 0"),
        (
            changed(
                inputs={
                    "values": [[1, 2, "x", 4, 4, "cpu"]],
                    "types": ["Tensor(float)"],
                    "shapes": [[]],
                }
            ),
            "node 8 .*is not a tensor",
        ),
        (changed(attrs=[{"name": "rf_id", "value": "seven"}]), "'seven' is not an integer"),
        (
            changed(
                name="process_group:init",
                inputs={"values": ["[{"], "types": ["String"], "shapes": [[]]},
            ),
            "node 8 .*truncated",
        ),
        (gzip.compress(b" " * 1_000_000, mtime=0) * 90, "limit of 400"),
        (gzip.compress(changed(), mtime=0)[:-20], "cut short"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(data)
    with pytest.raises((TraceError, LimitError), match=message) as caught:
        read_execution_trace(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("schema", [SCHEMAS[0], SCHEMAS[-1]])
def test_flipped_and_cut_bytes_give_an_answer_or_a_refusal(
    tmp_path: Path, schema: str, packed: bool
) -> None:
    chance = random.Random(schema)
    whole = json.dumps(example(schema).document()).encode()
    whole = gzip.compress(whole) if packed else whole
    path = tmp_path / "et.json"
    for turn in range(200):
        data = bytearray(whole if turn % 4 else whole[: chance.randrange(len(whole))])
        for _ in range(chance.choice((1, 1, 8)) if turn % 4 else 0):
            data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), *b'"[]{}-9,'))
        path.write_bytes(data)
        with contextlib.suppress(TraceError):
            found = read_execution_trace(path)
            execution_summary(found)


def _tensors(*pairs):
    """Tensors of these nodes and storages."""
    node, storage = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    rest = np.zeros(len(node), dtype=np.int64)
    return Tensors(node, rest, storage, rest, rest, rest)


def test_the_first_writer_of_a_storage_is_a_producer():
    parents = np.full(4, -1, dtype=np.int64)
    written, read = _tensors((0, 7), (1, 8), (2, 7)), _tensors((1, 7), (3, 7), (3, 8))
    source, target = data_edges(read, written, parents)
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == [(0, 1), (2, 3), (1, 3)]


@st.composite
def call_trees(draw):
    """Nodes in the order of their begin: each node's caller, and the storages it reads, writes."""
    parents = [-1]
    for node in range(1, draw(st.integers(2, 12))):
        open_nodes, above = [], node - 1
        while above >= 0:
            open_nodes.append(above)
            above = parents[above]
        parents.append(draw(st.sampled_from([-1, *open_nodes])))
    storages = st.lists(st.integers(0, 3), max_size=3)
    return parents, [(draw(storages), draw(storages)) for _ in parents]


@given(call_trees())
def test_a_reader_depends_on_the_last_writer_before_it_that_did_not_call_it(tree):
    parents, touched = tree
    above = {}
    for node, parent in enumerate(parents):
        above[node] = {parent} | above.get(parent, set())
    expected = {
        (writers[-1], node)
        for node, (reads, _) in enumerate(touched)
        for storage in reads
        if storage
        and (
            writers := [w for w in range(node) if storage in touched[w][1] and w not in above[node]]
        )
    }  # storage 0 is one that PyTorch does not record
    inputs, outputs = (
        [(node, storage) for node, sides in enumerate(touched) for storage in sides[side]]
        for side in (0, 1)
    )
    if inputs and outputs:
        made = data_edges(_tensors(*inputs), _tensors(*outputs), np.array(parents, dtype=np.int64))
        pairs = list(zip(*(column.tolist() for column in made), strict=True))
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == expected


def tensors_of(*elements, kind="float"):
    """An argument: a list of tensors of so many elements each."""
    each = [tensor(n, n, count) for n, count in enumerate(elements, 1)]
    return each, f"GenericList[{','.join([f'Tensor({kind})'] * len(each))}]"


def record_of(tmp_path, inputs, outputs=(), **attributes):
    program = Program()
    program.op("record_param_comms", inputs=list(inputs), outputs=list(outputs), **attributes)
    (comm,) = read_execution_trace(program.write(tmp_path / "et.json")).comms
    return comm.record


def positional(word="allgather", group=(["3", "tp"], "Tuple"), splits=((), ()), last=8, number=7):
    lists = [(list(split), "GenericList[Int]") for split in splits]
    return [(number, "Int"), group, (0, "Int"), (word, "String"), *lists, (last, "Int")]


def test_a_record_is_read_by_its_positions(tmp_path):
    record = record_of(tmp_path, [tensors_of(4), *positional()], [tensors_of(16, 16)])
    assert (record.collective, record.in_elements, record.out_elements) == ("allgather", 4, 32)
    assert (record.group_key, record.group_label, record.group_size) == ("3", "tp", 8)
    assert (record.sequence, record.dtype) == (7, "float")
    assert (record.in_split, record.out_split) == ((), ())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": (4711, "Int")}, {"group_key": "4711", "group_label": "", "group_size": 8}),
        ({"group": (0, "Int")}, {"group_key": "", "group_label": "", "group_size": None}),
        ({"group": (["3"], "Tuple")}, {"group_key": "3", "group_label": ""}),
        ({"group": ([], "Tuple")}, {"group_key": "", "group_size": None}),
        ({"number": [9, True]}, {"sequence": 9}),
        ({"number": []}, {"sequence": None}),
        ({"number": -1}, {"sequence": None}),
        ({"last": -8}, {"group_size": None}),
        ({"last": 0}, {"group_size": 0}),
        ({"splits": ((1, 2), (3, 4, 5))}, {"in_split": (1, 2), "out_split": (3, 4, 5)}),
        ({"splits": ((1, "x"), (True, 2))}, {"in_split": (), "out_split": ()}),
        ({"word": "all_to_all"}, {"in_split": (), "out_split": (16, 16)}),
        ({"word": "all_to_all", "splits": ((), (9,))}, {"out_split": (9,)}),
    ],
)
def test_each_argument_of_a_record_is_its_own_field(tmp_path, changes, expected):
    record = record_of(tmp_path, [tensors_of(4), *positional(**changes)], [tensors_of(16, 16)])
    assert {name: getattr(record, name) for name in expected} == expected


def test_types_that_differ_are_no_type_and_without_tensors_there_is_no_size(tmp_path):
    mixed = [tensors_of(4), *positional()]
    assert record_of(tmp_path, mixed, [tensors_of(4, kind="c10::Half")]).dtype == ""
    bare = record_of(tmp_path, positional())
    assert (bare.in_elements, bare.out_elements, bare.dtype) == (None, None, "")
    short = record_of(tmp_path, [tensors_of(4, 5), *positional()[:5]])
    assert (short.collective, short.in_elements, short.out_elements) == ("", 9, None)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, {"in_elements": 4, "out_elements": 32, "dtype": "float", "group_key": "3"}),
        ({"in_msg_nelems": 5, "out_msg_nelems": 0}, {"in_elements": 5, "out_elements": 0}),
        ({"dtype": "Half"}, {"dtype": "Half"}),
        ({"dtype": ""}, {"dtype": "float"}),
        ({"pg_name": "9", "pg_desc": "dp"}, {"group_key": "9", "group_label": "dp"}),
        ({"pg_size": 2}, {"group_size": 2, "group_ranks": None}),
        ({"pg_size": -2}, {"group_size": 8}),
        (
            {"pg_size": 3, "global_rank_start": 0, "global_rank_stride": 2},
            {"group_ranks": (0, 2, 4)},
        ),
        ({"pg_size": 1, "global_rank_start": 5, "global_rank_stride": 1}, {"group_ranks": (5,)}),
        ({"pg_size": 3, "global_rank_start": 0, "global_rank_stride": 0}, {"group_ranks": None}),
        ({"pg_size": 0, "global_rank_start": 0, "global_rank_stride": 1}, {"group_ranks": None}),
        (
            {"pg_size": 10**6 + 1, "global_rank_start": 0, "global_rank_stride": 1},
            {"group_ranks": None},
        ),
    ],
)
def test_attributes_are_believed_before_arguments(tmp_path, attributes, expected):
    inputs, outputs = [tensors_of(4), *positional("gather")], [tensors_of(16, 16)]
    record = record_of(tmp_path, inputs, outputs, collective_name="allgather", **attributes)
    assert record.collective == "allgather"
    assert {name: getattr(record, name) for name in expected} == expected
    unnamed = record_of(tmp_path, inputs, outputs, **attributes)
    assert (unnamed.collective, unnamed.in_elements, unnamed.group_key) == ("gather", 4, "3")


@pytest.mark.parametrize("name", ["collective_name", "dtype", "pg_name", "pg_desc"])
@pytest.mark.parametrize("value", [1e300, [1]])
def test_names_of_a_call_are_text(tmp_path, name, value):
    attributes = {"collective_name": "allgather", name: value}
    with pytest.raises(TraceError, match=rf"{name}: .* is not a name"):
        record_of(tmp_path, [tensors_of(4), *positional()], [tensors_of(4)], **attributes)


def test_the_summary_counts_equal_calls_with_the_larger_of_their_sides(tmp_path):
    program = Program()
    program.groups(
        {"pg_name": "3", "pg_desc": "tp", "backend_id": 99, "group_size": 3, "ranks": []},
        {"pg_name": "4", "pg_desc": "", "ranks": [1, 5]},
        {"pg_name": 5, "pg_desc": "e"},
    )
    for received in (16, 16, 2):
        program.op("record_param_comms", inputs=[tensors_of(4), *positional()],
                   outputs=[tensors_of(received)])  # fmt: skip
    unlabelled = positional("wait", group=(99, "Int"))
    program.op("record_param_comms", inputs=unlabelled)
    program.op("record_param_comms", inputs=[tensors_of(0), *positional("barrier")])
    odd = tensors_of(4, kind="c10::Odd")
    program.op("record_param_comms", inputs=[odd, *positional("send")], tid=2)
    trace = read_execution_trace(program.write(tmp_path / "et.json"))
    summary = execution_summary(trace)
    assert [(c.collective, c.group, c.ranks, c.size, c.count) for c in summary.calls] == [
        ("allgather", "tp", 8, 64.0, 2),
        ("allgather", "tp", 8, 16.0, 1),
        ("wait", "3", 8, None, 1),
        ("barrier", "tp", 8, 0.0, 1),
        ("send", "tp", 8, None, 1),
    ]
    assert dict(summary.groups) == {"3": (0, 1, 2), "4": (1, 5), "5": None}
    assert {group.key: group.size for group in trace.groups.values()} == {"3": 3, "4": 2, "5": 0}
    assert (summary.nodes, summary.threads, summary.records) == (9, 2, 6)
    assert summary.operators[0] == ("record_param_comms", 6)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (json.dumps([{"pg_name": "1", "group_size": -1}]), "-1 is not a number of ranks"),
        (json.dumps([{"pg_name": "1", "group_size": 10**6 + 1}]), "1000001 is not a number"),
        (7, "process groups: 7 is not text"),
    ],
)
def test_process_groups_that_cannot_be_are_refused_with_their_node(tmp_path, config, said):
    program = Program()
    program.op("## process_group:init ##", inputs=[(config, "String")])
    with pytest.raises(TraceError, match=f"node 3 .*{said}"):
        read_execution_trace(program.write(tmp_path / "et.json"))


def test_an_archive_of_several_traces_has_no_one_trace_and_one_of_none_is_refused(tmp_path):
    def archive(*names):
        path = tmp_path / "et.tar"
        with tarfile.open(path, "w") as packed:
            for name in names:
                data = json.dumps(example().document()).encode()
                member = tarfile.TarInfo(name)
                member.size = len(data)
                packed.addfile(member, io.BytesIO(data))
        return path

    with pytest.raises(TraceError, match="holds 2 execution traces"):
        read_execution_trace(archive("a.json", "b.json"))
    with pytest.raises(TraceError, match="no JSON file in this archive"):
        read_execution_trace(archive("a.txt"))
    with pytest.raises(TraceError, match=r"16 nodes, 4 communication records"):
        refuse_to_replay(archive("a.json", "b.json"), "median")
