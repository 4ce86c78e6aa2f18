"""Lines of NCCL's Inspector become calls: the last rank's time, the median of equal calls."""

import json
import re
from pathlib import Path

import pytest

from collectives.files.benchmark_logs import is_log, read_logs
from collectives.files.measured_calls import Layout, placed
from simulator.support.errors import TraceError

SHARED = Path(__file__).parents[3].parent / "shared/traces/formats/nccl_inspector"


def line(rank, number, time_us, *, size=1 << 30, kind="AllReduce", per_rank=1, **call):
    """A line of a rank of eight on two nodes; the Inspector's bandwidth is of all bytes."""
    return {
        "header": {"id": "0xabc", "rank": rank, "n_ranks": 8, "nnodes": 2},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "host", "pid": 7},
        "coll_perf": {
            "coll": kind,
            "coll_sn": number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": round(size * per_rank / time_us / 1e3, 6),
            "coll_busbw_gbs": 0.0,
        }
        | call,
    }


def written(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_a_call_on_no_node_is_refused():
    with pytest.raises(TraceError, match="8 ranks do not divide evenly over 0 nodes"):
        placed(8, 0, Layout(), "a.log, line 1")


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces beside the checkout")
def test_the_examples_of_its_readme_have_the_bandwidths_that_it_prints():
    file = SHARED / "readme_examples.jsonl"
    raw = [json.loads(text)["coll_perf"] for text in file.read_text().splitlines()]
    (log,) = read_logs([file])
    for call, own in zip(log.calls, raw, strict=True):
        assert call.size / call.time / 1e9 == pytest.approx(own["coll_algobw_gbs"], rel=1e-5)
    assert [(call.kind, call.ranks, call.nodes) for call in log.calls] == [
        ("all_reduce", 8, 1),
        ("reduce_scatter", 8, 1),
    ]


def test_of_a_call_the_last_rank_counts_and_of_equal_calls_the_median(tmp_path):
    times = {1: (900, 500), 2: (510, 800), 3: (2000, 2500)}
    files = [
        written(
            tmp_path / f"process{rank}.log",
            [line(rank, number, by_rank[rank]) for number, by_rank in times.items()],
        )
        for rank in range(2)
    ]
    (log,) = read_logs(files)
    (call,) = log.calls
    assert (call.kind, call.ranks, call.nodes, call.size) == ("all_reduce", 8, 2, 1 << 30)
    assert call.time == pytest.approx(510e-6)
    assert any("lack lines of some" in note for note in log.notes)


def test_bytes_of_one_rank_are_made_those_of_all(tmp_path):
    file = written(tmp_path / "a", [line(0, 1, 500, kind="AllGather", per_rank=8)])
    assert read_logs([file])[0].calls[0].size == 8 << 30


def test_messages_and_times_of_the_host_are_left_out_with_a_note(tmp_path):
    message = {"header": {}, "p2p_perf": {"p2p": "Send"}}
    host = line(0, 1, 900, coll_timing_source="collective_cpu")
    lines = [line(0, 2, 500), message, message, host, host, host]
    (log,) = read_logs([written(tmp_path / "a", lines)])
    assert len(log.calls) == 1
    counts = [re.findall(r": (\S+) (?:messages \(p2p_perf|calls timed by)", n) for n in log.notes]
    assert [count for count in counts if count] == [["2"], ["3"]]


def test_a_rank_is_one_of_the_communicator(tmp_path):
    with pytest.raises(TraceError, match=r"header\.rank 8 is none of 8 ranks"):
        read_logs([written(tmp_path / "a", [line(8, 1, 500)])])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"coll": "Fold"}, "is not a call"),
        ({"coll_exec_time_us": 0}, "is no time"),
        ({"coll_exec_time_us": "x"}, "not a whole number"),
        ({"coll_algobw_gbs": 7.0}, "the line is damaged"),
        ({"coll_algobw_gbs": None}, "coll_algobw_gbs"),
        ({"coll_algobw_gbs": 10**400}, "not a bandwidth"),
        ({"coll_msg_size_bytes": -1}, "not a whole number"),
        ({"coll_msg_size_bytes": 2**62}, "not a whole number"),
    ],
)
def test_a_damaged_line_is_refused_with_its_number(tmp_path, change, why):
    file = written(tmp_path / "a", [line(0, 1, 500), line(0, 2, 500, **change)])
    with pytest.raises(TraceError, match=why) as caught:
        read_logs([file])
    assert "line 2" in str(caught.value)


def test_a_file_is_known_by_its_content():
    assert is_log(json.dumps(line(0, 1, 500)).encode())


def test_the_ranks_of_a_call_do_not_contradict_one_another(tmp_path):
    sound = [line(rank, 1, 1000) for rank in range(8)]
    # NCCL numbers the calls of a communicator by kind.
    others = [line(rank, 1, 3000, kind="AllGather", per_rank=8) for rank in range(8)]
    (log,) = read_logs([written(tmp_path / "a.log", sound + others)], Layout())
    assert {call.kind: call.time for call in log.calls} == {"all_reduce": 1e-3, "all_gather": 3e-3}
    assert not log.notes, "all ranks have a line of each call"
    of_four = sound[1] | {"header": sound[1]["header"] | {"n_ranks": 4}}
    of_one_node = sound[1] | {"header": sound[1]["header"] | {"nnodes": 1}}
    for wrong in (sound[0], line(1, 1, 1000, size=1 << 20), of_four, of_one_node):
        file = written(tmp_path / "b.log", [sound[0], wrong])
        with pytest.raises(TraceError, match=r"line 2: contradicts .* line 1"):
            read_logs([file], Layout())
