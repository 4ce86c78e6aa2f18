"""What varies in Kineto files between versions and machines, and which rank a file is of."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from helpers.kineto_events import CUDA, kernel, names, read, read_rank, trace, write
from helpers.places import SAMPLES
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.core.events import launch_rows
from traces.core.loaded import ODD
from traces.kineto.comm import group_ranks
from traces.kineto.schema import identifier
from traces.load import open_trace


def test_gzip_is_told_by_its_content(tmp_path: Path) -> None:
    packed = tmp_path / "rank0.json"
    packed.write_bytes(gzip.compress(CUDA.read_bytes()))
    plain = tmp_path / "rank0.json.gz"
    plain.write_bytes(CUDA.read_bytes())
    assert len(read_rank(packed).host) == len(read_rank(plain).host) == len(read_rank(CUDA).host)


def test_gzip_in_several_members_is_one_file(tmp_path: Path) -> None:
    data = CUDA.read_bytes()
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(data[:999]) + gzip.compress(data[999:]))
    assert len(read_rank(path).host) == len(read_rank(CUDA).host)


def test_ids_streams_and_stamps_may_be_text(tmp_path: Path) -> None:
    args = {"correlation": "77", "External id": "5", "stream": "7", "device": "0"}
    found = read(
        tmp_path,
        kernel(tid=99, ts="10.5", dur="2.001", args=args),
        kernel(tid="stream 7", ts=20, args={"correlation": ""}),
    )
    assert list(found.device.correlation) == [77, -1]
    assert list(found.device.external) == [5, -1]
    assert found.streams == ("stream 7",)
    assert found.device.end[0] == pytest.approx(2.001e-6, abs=1e-15)
    assert found.epoch == 10500


def test_devices_of_one_file_are_told_apart(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        kernel(args={"device": 0, "stream": 7}),
        kernel(args={"device": 1, "stream": 7}, ts=11),
        kernel(cat="cuda_sync", name="Stream Sync", args={"device": 1, "stream": 7}, ts=12),
    )
    assert found.streams == ("device 0 stream 7", "device 1 stream 7")
    assert found.syncs[0].stream == "device 1 stream 7"


def test_stamps_since_1970_keep_the_nanoseconds_a_float_would_lose(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1706850122846038.%s, "dur": 1.001}'
    path.write_text('{"traceEvents": [' + event % "123" + "," + event % "124" + "]}")
    found = read_rank(path)
    assert found.epoch == 1706850122846038123
    assert found.device.start[1] == pytest.approx(1e-9, abs=1e-15)
    assert found.device.end[0] == pytest.approx(1001e-9, abs=1e-15)


@pytest.mark.parametrize("stamp", [0, 0.001, 4458676522690.655, 8796093022207.999])
def test_three_decimals_are_exact(tmp_path: Path, stamp: float) -> None:
    found = read(tmp_path, kernel(ts=stamp, dur=0.001), baseTimeNanoseconds=17 * 10**17)
    assert found.epoch == 17 * 10**17 + int(Decimal(str(stamp)) * 1000)
    assert round(found.device.end[0] * 1e9) == 1


def test_ids_of_64_bits(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(args={"correlation": 2**64 - 1, "External id": 2**62}))
    assert (found.device.correlation[0], found.device.external[0]) == (-1, 2**62)


@pytest.mark.parametrize(
    ("written", "size", "ranks"),
    [
        ("[0, 1, ..., 31]", 32, tuple(range(32))),
        ("[3, 11, 19, ..., 123]", 16, tuple(range(3, 128, 8))),
        ("[0, 1, ..., 30, 31]", 32, tuple(range(32))),
        ("[0, ..., 31]", 32, tuple(range(32))),
        ("[5, 6, …, 12]", 8, tuple(range(5, 13))),
        (["0", "1", "...", "31"], 32, tuple(range(32))),
        ("[0, ..., 62]", 32, None),  # every second one, or one half of each of two nodes
        ("[0, 1, ..., 31]", 16, None),
        ("[0, 1, ..., 31]", None, None),
        ("[0, 1, 4, ..., 31]", 32, None),
        ("[0, 1, 2, ...]", 32, None),
        ("[..., 31]", 32, None),
        ("[0, 1, ..., 999999999]", 1000000000, None),
        ("[0, 0, ..., 0]", 32, None),
    ],
)
def test_an_elided_list_is_completed_where_one_sequence_fits_and_else_unknown(
    tmp_path: Path, written: object, size: int | None, ranks: tuple[int, ...] | None
) -> None:
    args = {"Collective name": "allreduce", "Process Group Ranks": written, "Seq": "4"}
    found = read(tmp_path, kernel(args={**args, "Group size": size, "Process Group Name": "2"}))
    (record,) = found.comms
    assert (record.group_ranks, record.group_size, record.sequence) == (ranks, size, 4)
    said = [reason for reason in found.unused if "elided" in reason]
    assert len(said) == (ranks is None)


def test_a_group_elided_in_pg_config_is_completed_or_read_from_the_calls(tmp_path: Path) -> None:
    config = [
        {"pg_name": "0", "pg_desc": "all", "pg_size": 64, "ranks": "[0, 1, 2, ..., 63]"},
        {"pg_name": "1", "pg_desc": "dp", "pg_size": 4, "ranks": "[0, ..., 7]"},
        {"pg_name": "2", "pg_desc": "pp", "pg_size": 4, "ranks": "[0, ..., 9]"},
    ]
    args = {
        "Collective name": "allreduce",
        "Process Group Name": "1",
        "Process Group Ranks": "[0, 1, 6, 7]",
    }
    info = {"rank": 0, "world_size": 64, "pg_config": config}
    found = read(tmp_path, kernel(args=args), distributedInfo=info)
    ranks = {key: group.ranks for key, group in found.groups.items()}
    assert ranks == {"0": tuple(range(64)), "1": (0, 1, 6, 7), "2": None}
    assert sum(count for reason, count in found.unused.items() if "elided" in reason) == 1


def test_a_group_that_one_call_lists_is_known_to_the_others(tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce",
        "Process Group Name": "9",
        "Process Group Ranks": "[0, 3]",
    }
    assert read(tmp_path, kernel(args=args)).groups["9"].ranks == (0, 3)


@given(
    first=st.integers(0, 50),
    step=st.integers(1, 9),
    size=st.integers(4, 200),
    kept=st.integers(2, 3),
)
def test_what_was_elided_comes_back(first: int, step: int, size: int, kept: int) -> None:
    ranks = tuple(range(first, first + step * size, step))
    written = f'"[{", ".join(map(str, ranks[:kept]))}, ..., {ranks[-1]}]"'
    assert group_ranks(Raw(written.encode()), size) == (ranks, False)


def test_peers_of_sends_and_receives(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        kernel(args={"Collective name": "send", "Dst Rank": 12, "Rank": 1}),
        kernel(args={"Collective name": "recv", "Src Rank": 3, "Rank": 0}),
        kernel(cat="user_annotation", name="nccl:send 96->4"),
        kernel(cat="user_annotation", name="nccl:recv 0<-1"),
        kernel(args={"Collective name": "broadcast", "Rank": 2}),
    )
    told = {(r.collective, r.peer, r.group_peer) for r in found.comms}
    assert told == {
        ("send", 12, 1),
        ("recv", 3, 0),
        ("send", None, 4),
        ("recv", None, 1),
        ("broadcast", None, None),  # there the rank is the root's
    }


@pytest.mark.parametrize("dims", ["Input Dims", "Input dims"])
def test_what_is_received_is_no_input(tmp_path: Path, dims: str) -> None:
    args = {dims: [[1000]], "Input type": ["float"]}
    found = read(tmp_path, kernel(cat="user_annotation", name="gloo:recv", args=args))
    assert (found.comms[0].in_elements, found.comms[0].out_elements) == (None, 1000)


def test_splits_of_an_all_to_all(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[4], [6], [], [], [], []],
        "Input type": ["float", "float", "", "ScalarList", "ScalarList", "Scalar"],
        "Concrete Inputs": ["", "", "", "[1, 3]", "[2, 4]", "-1"],
    }
    record = read(tmp_path, kernel(cat="cpu_op", name="c10d::alltoall_base_", args=args)).comms[0]
    assert (record.in_elements, record.out_elements, record.dtype) == (6, 4, "float")
    assert (record.in_split, record.out_split) == ((2, 4), (1, 3))


def test_a_group_by_number_in_ten_arguments(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[2, 3], *[[]] * 9],
        "Input type": ["float", *["Scalar"] * 3, "", "ScalarList", "ScalarList", *["Scalar"] * 3],
        "Concrete Inputs": ["", "7", "3", "0", "", "[]", "[]", "0", "2", "4"],
    }
    record = read(tmp_path, kernel(cat="cpu_op", name="record_param_comms", args=args)).comms[0]
    assert (record.in_elements, record.dtype) == (6, "float")
    assert (record.sequence, record.group_key, record.group_size) == (7, "3", 4)


def test_a_tensor_without_dimensions_has_one_element(tmp_path: Path) -> None:
    args = {"Input Dims": [[]], "Input type": ["float"]}
    found = read(tmp_path, kernel(cat="user_annotation", name="nccl:all_reduce", args=args))
    assert found.comms[0].in_elements == 1


def launched(name: str, called: float, began: float, correlation: int) -> list[dict[str, Any]]:
    """A launch, and its kernel."""
    args = {"correlation": correlation}
    call = kernel(cat="cuda_runtime", name="cudaLaunchKernel", ts=called, dur=1, args=args)
    device = {**args, "device": 0, "stream": 7}
    return [call, kernel(name=name, ts=began, dur=2, args=device)]


def test_launches_of_one_correlation_id_have_the_kernels_that_follow_each(tmp_path: Path) -> None:
    """As in a file that was put together of several processes' files."""
    found = read(
        tmp_path,
        *launched("late", 20, 30, 5),
        *launched("early", 1, 8, 5),
        *launched("other", 2, 10, 6),
    )
    rows = launch_rows(found)
    started = dict(zip(names(found, found.device.name), found.host.start[rows], strict=True))
    first = min(started.values())
    assert {name: round((at - first) * 1e6) for name, at in started.items()} == {
        "early": 0,
        "other": 1,
        "late": 19,
    }


def in_turn(*, lost: int = 0, late: float = 5, lasting: float = 2) -> list[dict[str, Any]]:
    """300 launches, 20 us apart, and their kernels."""
    events = []
    for number in range(300):
        call, run = launched("gemm", 20 * number, 20 * number + late, number + 1)
        events += [call] if number < lost else [call, {**run, "dur": lasting}]
    return events


ELSEWHERE = kernel(cat="user_annotation", name="ProfilerStep#1", ts=7e5, dur=9e3, tid=1, args={})


@pytest.mark.parametrize(
    ("events", "note"),
    [
        (in_turn(), ""),
        (in_turn(lost=6), ""),
        (in_turn(lost=8), "8 of 300 launches have no kernel, so the device seems idle"),
        (in_turn(late=5e5), ""),
        (in_turn(late=2e6), "no kernel begins within 2 s of the last launch"),
        (in_turn(lasting=28), ""),
        (in_turn(lasting=38), "299 of 300 kernels begin before one ahead on their stream"),
        ([*in_turn(lasting=15), in_turn(lasting=4e3)[1]], "200 of 301 kernels begin before one"),
        ([ELSEWHERE, *in_turn()], "the step has none of the 300 kernels that were recorded"),
    ],
)
def test_kernels_that_no_device_runs_so_are_doubted(
    tmp_path: Path, events: list[dict[str, Any]], note: str
) -> None:
    loaded = open_trace(write(tmp_path / "rank0.json", trace(*events)))("all")
    doubts = [doubt for doubt in loaded.coverage.notes if ODD in doubt]
    assert len(doubts) == bool(note)
    assert all(doubt.startswith(note) for doubt in doubts)


def test_where_no_launch_was_recorded_the_host_is_unknown(tmp_path: Path) -> None:
    """Nothing joins its operators to the kernels: they are no work that holds these up."""
    operator = kernel(cat="cpu_op", name="aten::mm", ts=1, dur=90, tid=1, args={})
    call, run = launched("gemm", 2, 8, 5)
    for events, hosts in (([operator, run], 0), ([operator, call, run], 1)):
        load = open_trace(write(tmp_path / "rank0.json", trace(*events)))("all").workload
        assert bool((load.what == What.HOST).any()) == bool(hosts)
        assert (load.what == What.COMPUTE).sum() == 1


def test_begins_and_ends_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="begins and ends, ph B and E"):
        read(tmp_path, kernel(ph="B"), kernel(ph="E", ts=9))


def test_host_events_are_sorted_the_enclosing_one_first(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        kernel(cat="cpu_op", name="inner", ts=5, dur=1),
        kernel(cat="cpu_op", name="outer", ts=5, dur=9, args={"External id": 4}),
        kernel(cat="cpu_op", name="first", ts=1, dur=1, args={"External id": 3}),
    )
    assert list(found.host.external) == [3, 4, -1]
    assert names(found, found.host.name) == ["first", "outer", "inner"]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("job_v100_4gpu_Rank_12.json.gz", 12),
        ("run-2024-rank-5.pt.trace.json", 5),
        ("host_3.json", 3),
        ("trace.7.json", 7),
        ("kineto4.json", 4),
        ("worker0.1706850122846.pt.trace.json.gz", 0),
    ],
)
def test_the_name_tells_the_rank(tmp_path: Path, name: str, rank: int) -> None:
    found = read_rank(write(tmp_path / name, {"traceEvents": [kernel()]}))
    assert (found.rank, found.rank_source) == (rank, "file name")


@pytest.mark.parametrize("name", ["trace.json", "a100_8gpu.json", "run_2_of_3.json"])
def test_a_name_that_does_not_tell_asks_for_one(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, {"traceEvents": [kernel()]})
    with pytest.raises(TraceError, match=r"which rank is this.*rename it to .*_rank3\.json"):
        read_rank(path)
    assert read_rank(path, alone=True).rank_source == "assumed: the only file"


def test_the_file_itself_counts_more_than_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rank3.json", trace(kernel(), distributedInfo={"rank": "5"}))
    assert read_rank(path).rank == 5


def sample_events() -> list[dict[str, Any]]:
    file = SAMPLES / "gpu-dp2-tp4" / "rank0.json.gz"
    events: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return events


@pytest.mark.parametrize("alike", [True, False])
def test_events_that_are_in_a_file_twice_count_once_or_are_refused(tmp_path, alike) -> None:
    events = sample_events()
    again = events if alike else [event | {"copied": True} for event in events]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [*events, *again]}))
    if not alike:
        with pytest.raises(TraceError, match="in it twice, at the same times, but not written ali"):
            read_rank(file, alone=True)
        return
    twice = read_rank(file, alone=True)
    file.write_text(json.dumps({"traceEvents": events}))
    once = read_rank(file, alone=True)
    assert len(twice.device) == len(once.device)
    assert len(twice.host) == len(once.host)
    assert twice.unused["copies of other events, left out"] == len(events)


@pytest.mark.parametrize(
    ("factor", "fields", "events", "refusal"),
    [
        (1000, ("ts", "dur"), None, "ts and dur in nanoseconds"),
        (
            1000,
            ("ts", "dur"),
            45,
            "half of [0-9]+ calls of the runtime.* ts and dur in nanoseconds",
        ),
        (1000, ("ts",), None, "is ts in nanoseconds where dur is in microseconds"),
        (1e-3, ("ts", "dur"), None, "in milliseconds"),
        (1, ("ts", "dur"), None, None),
        (1, ("ts", "dur"), 45, None),
        (1.5, ("ts", "dur"), None, None),
    ],
)
def test_times_that_are_no_microseconds_are_refused(
    tmp_path, factor, fields, events, refusal
) -> None:
    whole = sorted(sample_events(), key=lambda event: (event.get("ph") == "X", event.get("ts", 0)))
    first = next(i for i, event in enumerate(whole) if event.get("ph") == "X")
    events = whole if events is None else whole[: first + events]
    epoch = whole[first]["ts"]
    for event in events:
        for field in fields:
            if field in event:
                time = factor * (event[field] - epoch * (field == "ts"))
                event[field] = round(time) if factor == 1000 else time
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    if refusal is None:
        assert len(read_rank(file, alone=True).device)
    else:
        with pytest.raises(TraceError, match=refusal):
            read_rank(file, alone=True)


@pytest.mark.parametrize("text", ["", "ranks", "[0, 1", "0-7", "[0..7]"])
def test_ranks_that_are_no_list_are_unknown_and_none_are_left_out(text: str) -> None:
    assert group_ranks(Raw(f'"{text}"'.encode()), 8) == (None, False)


@pytest.mark.parametrize("piece", ["[0.5, 1.5]", '"[0.5, 1.5]"'])
def test_fractions_of_ranks_are_refused(piece: str) -> None:
    with pytest.raises(ValueError, match="has fractions of ranks"):
        group_ranks(Raw(piece.encode()), 2)


@pytest.mark.parametrize("value", [-0.0, "-0", "-0x5"])
def test_a_negative_zero_is_no_id(value: float | str) -> None:
    with pytest.raises(ValueError, match=r"'correlation': .* is not an integer"):
        identifier(value, "correlation")
