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


def changed_call(**fields: object) -> bytes:
    """A call whose attributes have these values, and those that all calls have."""
    usual = {"collective_name": "allreduce", "pg_name": "7", "dtype": "Float"}
    attrs = [{"name": name, "type": "", "value": value} for name, value in (usual | fields).items()]
    return changed(name="record_param_comms", attrs=attrs)


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
        (changed_call(out_msg_nelems=10**30), "node 8 .*is not a number of elements"),
        (changed_call(pg_desc=1e300), r"node 8 .*pg_desc: 1e\+300 is not a name"),
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
