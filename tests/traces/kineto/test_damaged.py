"""Bad and damaged Kineto files: refused in one line that names file, event and field."""

import contextlib
import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from helpers.kineto_events import CUDA, DATA, kernel, read, read_rank
from helpers.places import ROOT
from simulator.support.errors import LimitError, TraceError
from traces.load import load

SAMPLES = ROOT / "traces" / "samples"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (kernel(dur=None), r"event 1 'gemm': field 'dur': missing"),
        (kernel(dur=-1), r"event 1 'gemm': field 'dur': -1 is negative"),
        (kernel(ts=None), r"event 1 'gemm': field 'ts': missing"),
        (kernel(ts="soon"), r"event 1 'gemm': field 'ts': 'soon' is not a number"),
        (kernel(ts="9" * 999), r"field 'ts': .9{59}\.\.\. us is no time"),
        (kernel(ts="nan"), r"event 1 'gemm': field 'ts': 'nan' is not a number"),
        (kernel(ts=1e300), r"event 1 'gemm': field 'ts': 1e\+300 us is no time"),
        (kernel(ts=[1]), r"event 1 'gemm': .*\$\.ts"),
        (kernel(args=[]), r"event 1 'gemm': .*\$\.args"),
        (kernel(args={"correlation": "x1"}), r"'gemm': field 'correlation': 'x1' is not an int"),
        (kernel(args={"correlation": 1.5}), r"'gemm': field 'correlation': 1.5 is not an int"),
        (kernel(args={"External id": 2**70}), r"field 'External id': .* does not fit"),
        (
            kernel(args={"Collective name": "allreduce", "In msg nelems": "many"}),
            r"event 1 'gemm': field 'In msg nelems': 'many' is not an integer",
        ),
        (
            kernel(
                cat="cpu_op",
                name="nccl:all_reduce",
                args={"Input Dims": [["a"]], "Input type": ["int"]},
            ),
            r"event 1 'nccl:all_reduce': field 'Input Dims'",
        ),
        (
            kernel(cat="cpu_op", name="nccl:all_reduce", args={"Input Dims": {}}),
            r"event 1 'nccl:all_reduce': field 'Input Dims': .* is not a list",
        ),
        (kernel(cat="cuda_sync", args={"stream": "?"}), r"field 'stream': '\?' is not an integer"),
    ],
)
def test_a_broken_event_is_named(tmp_path: Path, event: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path, kernel(), event)
    assert str(tmp_path / "trace.json") in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Group size": 2', '"Group size": 8', "Group size is 8, but its ranks are 2"),
        ('"Out msg nelems": 2049000', '"Out msg nelems": 5', "all_reduce of 2049000 elements to 5"),
    ],
)
def test_sizes_of_a_call_do_not_contradict_one_another(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = tmp_path / "rank0.json"
    file.write_text((DATA / "kineto_cuda_rank0.json").read_text().replace(old, new))
    with pytest.raises(TraceError, match=f"rank0.json: kernel 'nccl.*{message}"):
        load(file)


@pytest.mark.parametrize(
    ("number", "message"),
    [(1e300, "1e+300 is no number of"), (float(2**64), "no number"), (-(2**70), "no number")],
)
@pytest.mark.parametrize("field", ["device", "stream"])
def test_a_device_or_stream_of_a_number_of_no_sense_is_refused(tmp_path, number, message, field):
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        read(tmp_path, kernel(), kernel(args={field: number}))
    assert "event 1 'gemm'" in str(caught.value)


@pytest.mark.parametrize("called", [{"name": ""}, {"name": "kernel"}, {}])
def test_kernels_without_names_of_their_own_are_refused(tmp_path, called):
    """No call would be found among them, and the step answered as one that does not communicate."""
    step = json.loads(gzip.decompress((SAMPLES / "gpu-dp2-tp4" / "rank0.json.gz").read_bytes()))
    for event in step["traceEvents"]:
        if event.get("cat") == "kernel":
            del event["name"]
            event.update(called)
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps(step))
    with pytest.raises(TraceError, match=r"rank0\.json: all 510 kernels are called '"):
        read_rank(file)


def test_kernels_of_one_name_are_read_where_nothing_was_called(tmp_path):
    assert len(read(tmp_path, *(kernel(ts=10 * at) for at in range(20))).device) == 20


@pytest.mark.parametrize("word", ["broadcast", "all_to_all", "allgather"])
def test_a_kernel_of_one_collective_that_is_recorded_as_another_is_refused(tmp_path, word):
    step = gzip.decompress((SAMPLES / "gpu-dp2-tp4" / "rank0.json.gz").read_bytes())
    (tmp_path / "rank0.json").write_bytes(step.replace(b'"allreduce"', b'"%s"' % word.encode()))
    with pytest.raises(TraceError, match=f"a kernel of all_reduce, but it is recorded as '{word}'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "size", "message"),
    [
        ([0, 1], 2, "group '1' has the ranks [0, 1], its calls [0, 4]"),
        ([0, 4], 99, "group '1': pg_size 99, not 2"),
        ([4, 0], 2, ""),
    ],
)
def test_groups_of_a_file_do_not_contradict_its_calls(tmp_path, ranks, size, message):
    step = json.loads(gzip.decompress((SAMPLES / "gpu-dp2-tp4" / "rank0.json.gz").read_bytes()))
    step["distributedInfo"]["pg_config"][1].update(ranks=ranks, pg_size=size)
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps(step))
    with (
        pytest.raises(TraceError, match=re.escape(message)) if message else contextlib.nullcontext()
    ):
        assert read_rank(file).groups["1"].ranks == (4, 0)


def test_an_event_that_is_not_used_may_be_broken(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(), kernel(cat="python_function", dur=-5, ts=None))
    assert found.unused == {"python_function": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\x89PNG\r\n\x1a\n", "not JSON: it begins with"),
        (b"rank: 0", "not JSON"),
        (b'{"traceEvents": [', "broken: Input data was truncated"),
        (b'{"traceEvents": [}', "broken: JSON is malformed"),
        (b'{"traceEvents": {}}', r"broken: Expected `array.*traceEvents"),
        (b'{"traceEvents": []}', "no operator, launch or kernel among its 0 events"),
        (b"[]", "a JSON list, but not of trace events"),
        (b"[1, 2]", "Expected `object`"),
        (b'[{"a": 1}]', "a JSON list, but not of trace events"),
        (b"{}", "JSON without traceEvents"),
        (b'{"schema": "1.0.1", "nodes": []}', "an execution trace"),
        (b"[" * 100_000, "broken"),
        (b'{"traceEvents": [{"ph": "X", "name": "\xff"}]}', "event 0: .*utf-8"),
        (gzip.compress(b"x" * 1_000_000, mtime=0) * 10, "not JSON"),
        (
            gzip.compress(b"{", mtime=0) + gzip.compress(b" " * 1_000_000, mtime=0) * 90,
            "limit of 400",
        ),
        (gzip.compress(CUDA.read_bytes(), mtime=0)[:-9], "cut short"),
        (gzip.compress(CUDA.read_bytes(), mtime=0)[:11], "cut short"),
        (gzip.compress(CUDA.read_bytes(), mtime=0) + b"more", "not gzip follow"),
        (gzip.compress(b"", mtime=0), "empty"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises((TraceError, LimitError), match=message) as caught:
        read_rank(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_path_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: no such file"):
        read_rank(tmp_path / "none.json")
    with pytest.raises(TraceError, match="cannot be read: is a directory"):
        read_rank(tmp_path)


def test_a_rank_outside_the_world(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rank 4 \(from distributedInfo\) in a world of 4"):
        read(tmp_path, kernel(), distributedInfo={"rank": 4, "world_size": 4})


def test_groups_that_are_not_understood_are_told(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(), distributedInfo={"rank": 0, "pg_config": {"0": "all"}})
    assert found.unused == {"distributedInfo.pg_config (not understood)": 1}


@pytest.mark.parametrize("file", sorted(DATA.glob("kineto_*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_cut_file_is_refused(tmp_path: Path, file: Path, packed: bool) -> None:
    whole = file.read_bytes().rstrip()
    whole = gzip.compress(whole) if packed else whole
    path = tmp_path / "rank0.json"
    for cut in np.linspace(0, len(whole) - 1, 30 if packed else 100).astype(int):
        path.write_bytes(whole[:cut])
        with pytest.raises(TraceError):
            read_rank(path)


@pytest.mark.parametrize("file", sorted(DATA.glob("kineto_*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_flipped_bytes_give_an_answer_or_a_refusal(
    tmp_path: Path, file: Path, packed: bool
) -> None:
    chance = random.Random(file.name)
    whole = file.read_bytes()
    path = tmp_path / "rank0.json"
    for _ in range(60):
        data = bytearray(gzip.compress(whole) if packed else whole)
        for _ in range(chance.choice((1, 1, 8))):
            data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), *b'"[]{}-9,'))
        path.write_bytes(data)
        with contextlib.suppress(TraceError):
            found = read_rank(path)
            assert len(found.host) + len(found.device) > 0


@pytest.mark.parametrize("rank", [-1, 10**9])
def test_a_number_that_is_no_rank(tmp_path: Path, rank: int) -> None:
    with pytest.raises(TraceError, match=f"distributedInfo.rank: {rank} is not a rank"):
        read(tmp_path, kernel(), distributedInfo={"rank": rank})


@pytest.mark.parametrize("world", [0, 10**9])
def test_a_number_that_is_no_world(tmp_path: Path, world: int) -> None:
    with pytest.raises(TraceError, match=f"distributedInfo.world_size: {world} is not a number"):
        read(tmp_path, kernel(), distributedInfo={"rank": 0, "world_size": world})


def test_the_event_that_is_wrong_is_named_in_however_long_a_file(tmp_path: Path) -> None:
    events = [kernel() for _ in range(9000)]
    events[8765] = kernel(dur=-1)
    with pytest.raises(TraceError, match=r"event 8765 'gemm': field 'dur': -1 is negative"):
        read(tmp_path, *events)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ts": "soon"}, "event 1 'ac2g': field 'ts': 'soon' is not a number"),
        ({"ts": None}, "event 1 'ac2g': field 'ts': missing"),
        ({"id": [1]}, r"event 1 'ac2g': field 'id': \[1\] is not an integer"),
        ({"id": "one"}, "event 1 'ac2g': field 'id': 'one' is not an integer"),
    ],
)
def test_a_broken_arrow_is_named_where_it_is_needed(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    arrow = kernel(ph="f", cat="ac2g", name="ac2g", id=1, dur=None) | fields
    with pytest.raises(TraceError, match=message):
        read(tmp_path, kernel(), arrow)
    other = kernel(ph="f", cat="fwdbwd", id=[1], dur=None)
    assert len(read(tmp_path, kernel(), other).device) == 1
    known = kernel(args={"correlation": 1})
    call = kernel(cat="cuda_runtime", name="cudaLaunchKernel", args={"correlation": 1})
    assert len(read(tmp_path, known, call, arrow).device) == 1


def test_a_trace_of_ascend_is_refused_and_not_taken_for_one_of_a_cpu(tmp_path):
    """Its operators are PyTorch's, its kernels have no category."""
    step = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 9}
    kernel = {"ph": "X", "name": "MatMulV2", "pid": 3, "tid": 2, "ts": 5, "dur": 3, "args": {}}
    named = {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "Ascend Hardware"}}
    file = tmp_path / "trace_view.json"
    file.write_text(json.dumps([step, kernel, named]))
    with pytest.raises(TraceError, match="Ascend"):
        load(file)
