"""Tables of measured calls: columns by their names and units, in CSV and JSON."""

import json

import pytest

from collectives.files.measured_calls import Layout, seconds
from helpers.benchmark_logs import MIB, read, refused, told
from simulator.support.errors import TraceError

TABLE = "kind,nodes,ranks,size_bytes,time_us\nall_reduce,1,8,1024,20\nall_reduce,1,8,2048,21\n"


def test_tables_by_the_names_of_their_columns(tmp_path):
    text = "Kind,Nodes,Ranks,Size_MiB,Time_ms,more\nAllReduce,2,16,4,0.25,x\n"
    assert told(read(tmp_path, text)) == [("all_reduce", 16, 2, 4 * MIB, pytest.approx(250))]
    without = "# from nowhere\nkind,ranks,size_bytes,time_us\n\nall_gather,8,64,9.5\n"
    assert told(read(tmp_path, without)) == [("all_gather", 8, None, 64, pytest.approx(9.5))]
    assert "size_bytes: '64.5' is not a size" in refused(tmp_path, without.replace("64", "64.5"))
    layout = Layout(ranks_per_node=4)
    assert told(read(tmp_path, without, layout))[0][:3] == ("all_gather", 8, 2)


def test_a_last_cell_may_be_blank_and_a_separator_may_end_a_row(tmp_path):
    text = "kind,ranks,size_bytes,time_us,note\nall_gather,8,64,9.5,\nall_gather,8,64,9.5,x,\n"
    assert told(read(tmp_path, text)) == 2 * [("all_gather", 8, None, 64, pytest.approx(9.5))]


def test_aiconfigurator_counts_elements_and_milliseconds(tmp_path):
    text = (
        "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        "TRTLLM,2.27.3,NVIDIA B200,alltoall,NCCL,half,8,512,0.0125\n"
    )
    log = read(tmp_path, text)
    assert told(log) == [("all_to_all", 8, None, 1024, pytest.approx(12.5))]
    assert log.library == "nccl"


def test_columns_that_name_no_kind_and_no_ranks_are_said_by_the_user(tmp_path):
    layout = Layout(kind="all_reduce", ranks=8)
    text = "nccl_dtype,message_size,latency\nhalf,512,0.0125\n"
    assert told(read(tmp_path, text, layout))[0][:4] == ("all_reduce", 8, None, 1024)
    own = "allreduce_dtype,message_size,latency\nhalf,512,0.0125\n"
    assert "serving framework's own kernels" in refused(tmp_path, own, layout)


@pytest.mark.parametrize(
    ("unit", "seconds"), [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)]
)
def test_a_time_is_the_same_in_every_unit(tmp_path, unit, seconds):
    text = f"kind,ranks,size_bytes,time_{unit}\nall_reduce,8,1024,{20e-6 / seconds!r}\n"
    assert told(read(tmp_path, text)) == [("all_reduce", 8, None, 1024, pytest.approx(20))]


@pytest.mark.parametrize(("times", "is_right"), [(1, True), (8, True), (2, False), (1.75, False)])
def test_a_bandwidth_beside_a_time_is_in_gigabytes_or_gigabits(tmp_path, times, is_right):
    speed = 2**30 / 10e-3 / 1e9
    text = f"kind,ranks,size_bytes,time_ms,algbw_gbps\nall_reduce,8,{2**30},10,{times * speed}\n"
    if is_right:
        assert len(read(tmp_path, text).calls) == 1
    else:
        assert "is a unit wrong" in refused(tmp_path, text)


def test_tables_of_two_machines_are_told_by_their_large_calls(tmp_path):
    head = "kind,nodes,ranks,size_bytes,time_us\n"
    rows = [f"all_reduce,1,8,{2**power},{2**power / 1e5}" for power in range(24, 30)]
    slower = [f"all_reduce,1,8,{2**power},{2**power / 6e4}" for power in range(24, 30)]
    near = [f"all_reduce,1,8,{2**power},{2**power / 9e4}" for power in range(24, 30)]
    assert "two machines" in refused(tmp_path, head + "\n".join([*rows, *slower]))
    assert len(read(tmp_path, head + "\n".join([*rows, *near])).calls) == 12
    assert "two machines" in refused(tmp_path, head + "\n".join([*rows[:3], *slower[:3]]))
    assert len(read(tmp_path, head + "\n".join([*rows[:2], *slower[:2]])).calls) == 4, "too few"
    once = [f"all_reduce,1,8,{3 * 2**power},{2**power / 3e4}" for power in range(24, 34)]
    assert "two machines" in refused(tmp_path, head + "\n".join([*rows[:3], *slower[:3], *once]))


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_tables_of_any_separator(tmp_path, separator):
    log = read(tmp_path, TABLE.replace(",", separator))
    assert told(log) == told(read(tmp_path, TABLE))


def test_a_barrier_has_no_bytes_and_other_rows_of_none_are_left_out(tmp_path):
    rows = ("barrier,8,0,5", "all_reduce,8,0,5", "all_reduce,8,1024,7", "barrier,8,8,6")
    log = read(tmp_path, "\n".join(("kind,ranks,size_bytes,time_us", *rows)))
    assert [(call.kind, call.size) for call in log.calls] == [
        ("barrier", 0.0), ("all_reduce", 1024.0), ("barrier", 8.0)
    ]  # fmt: skip
    assert [note for note in log.notes if "0 bytes are left out" in note]


@pytest.mark.parametrize(
    ("text", "is_time"),
    [("1e-9", True), ("3.2e9", True), ("9.99e-10", False), ("3.21e9", False), ("-1", False)],
)
def test_times_are_from_a_nanosecond_to_a_century(text, is_time):
    if is_time:
        assert seconds(text, 1.0, "here", "time") == float(text)
    else:
        with pytest.raises(TraceError, match="is not a time"):
            seconds(text, 1.0, "here", "time")


def test_tables_as_json(tmp_path):
    head, *rows = TABLE.splitlines()
    objects = [dict(zip(head.split(","), one.split(","), strict=True)) for one in rows]
    plain = told(read(tmp_path, TABLE))
    assert told(read(tmp_path, json.dumps(objects))) == plain
    assert told(read(tmp_path, "\n".join(map(json.dumps, objects)))) == plain


def test_a_quoted_head_and_names_of_nccl_s_functions(tmp_path):
    text = TABLE.replace("all_reduce", "ncclAllReduce", 1)
    text = text.replace("kind", '"kind"').replace("time_us", '"time_us"')
    assert told(read(tmp_path, text)) == told(read(tmp_path, TABLE))
