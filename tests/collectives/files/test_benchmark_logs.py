"""Benchmarks' logs: every form is read by its content, and what is torn is refused in one line."""

import gzip
import json
import lzma
import re

import pyarrow
import pytest

from collectives.files.benchmark_logs import read_logs
from collectives.files.measured_calls import LINK, Layout
from helpers.benchmark_logs import CONFIG, HEADS, MIB, printed, read, refused, told
from simulator.support.errors import TraceError

TIMES = {MIB: 40.25, 2 * MIB: 62.5, 4 * MIB: 101.0}
REDUCE = printed("all_reduce_perf", "all_reduce", TIMES)


def test_a_table_is_read_with_its_ranks_and_hosts(tmp_path):
    log = read(tmp_path, REDUCE)
    assert (log.tool, log.library) == ("nccl-tests", "nccl")
    assert log.devices == ("NVIDIA H100 80GB HBM3",)
    wanted = [("all_reduce", 8, 1, size, pytest.approx(time)) for size, time in TIMES.items()]
    assert told(log) == wanted


def test_hosts_say_how_ranks_lie(tmp_path):
    log = read(tmp_path, printed("all_gather_perf", "all_gather", TIMES, hosts=("a", "b") * 4))
    assert {(call.ranks, call.nodes) for call in log.calls} == {(8, 2)}
    line = refused(tmp_path, printed("all_gather_perf", "all_gather", TIMES, hosts=("a", "a", "b")))
    assert "a 2, b 1" in line


def test_several_runs_of_one_file_labelled_by_the_launcher(tmp_path):
    runs = REDUCE + printed("reduce_scatter_perf", "reduce_scatter", TIMES, hosts=("x",) * 4)
    for label in ("0: ", "[1,0]<stdout>: "):
        text = "".join(f"{label}{line}\n" for line in runs.splitlines())
        calls = read(tmp_path, "srun: job 7\n" + text).calls
        assert [(call.kind, call.ranks) for call in calls] == [
            *[("all_reduce", 8)] * 3,
            *[("reduce_scatter", 4)] * 3,
        ]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("all_reduce", {}),
        ("reduce_scatter", {}),
        ("all_gather", {"redop": "none"}),
        ("all_to_all", {"redop": "none", "in_place": "N/A"}),
        ("broadcast", {"redop": "none", "root": 0}),
        ("reduce", {"root": 0}),
    ],
)
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_kind_is_told_by_columns_where_no_program_is_named(tmp_path, kind, columns, ranks):
    log = read(tmp_path, printed("", kind, TIMES, hosts=("one",) * ranks, **columns))
    assert {call.kind for call in log.calls} == {kind}


def test_a_command_line_names_the_program(tmp_path):
    text = "$ mpirun -np 8 ./build/alltoall_perf -b 1M -e 4M -f 2\n"
    text += printed("", "all_to_all", TIMES, redop="none", dtype="half", width=2, in_place="N/A")
    assert {call.kind for call in read(tmp_path, text).calls} == {"all_to_all"}


def test_a_kind_that_nothing_tells_is_asked_for(tmp_path):
    unchecked = printed("", "all_gather", TIMES, redop="none", in_place="N/A")
    unchecked = re.sub(r"      0  ", "    N/A  ", unchecked)
    assert "--kind" in refused(tmp_path, unchecked)
    log = read(tmp_path, unchecked, Layout(kind="all_gather"))
    assert {call.kind for call in log.calls} == {"all_gather"}


def test_the_first_nccl_tests_had_no_root_and_left_a_blank_operator_out(tmp_path):
    text = (
        "# nThread 1 nGpus 4 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 "
        "iters: 20 validation: 1 \n#\n# Using devices\n"
        + "".join(
            f"#   Rank  {rank} Pid  12 on      host1 device  {rank} [0x06] Tesla V100-SXM2-16GB\n"
            for rank in range(4)
        )
        + "#\n#                                                     out-of-place        in-place\n"
        "#   size    count  type redop   time  algbw  busbw  error   time  algbw  busbw  error\n"
        "#    (B) (elements)             (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)\n"
        " 1048576    65536 float        50.00  20.97  15.73  0e+00  50.00  20.97  15.73  0e+00\n"
        " 2097152   131072 float        80.00  26.21  19.66  0e+00  80.00  26.21  19.66  0e+00\n"
    )
    log = read(tmp_path, "all_gather_perf\n" + text)
    assert told(log) == [
        ("all_gather", 4, 1, MIB, pytest.approx(50)),
        ("all_gather", 4, 1, 2 * MIB, pytest.approx(80)),
    ]


@pytest.mark.parametrize(
    ("deviation", "rows"), [("0e+00", 3), ("4e-07", 3), ("2e-05", 0), ("4e-07*", 0)]
)
def test_early_versions_print_the_largest_deviation(tmp_path, deviation, rows):
    """1e-5 of floats is rounding (DeltaMaxValue of nccl-tests 2.0); RCCL marks what is not."""
    text = REDUCE.replace("#wrong", "error").replace("      0", f"  {deviation}")
    if rows:
        assert len(read(tmp_path, text).calls) == rows
    else:
        assert "wrong results" in refused(tmp_path, text)


def test_a_run_that_failed_its_own_check_says_so(tmp_path):
    log = read(tmp_path, REDUCE.replace(": 0 OK", ": 3 FAILED"))
    assert len(log.calls) == len(TIMES)  # only the calls in place had wrong results
    (note,) = log.notes
    assert "failed its own check: Out of bounds values: 3" in note
    run = json.dumps(json_run() | {"out_of_bounds": {"count": 3, "okay": False}})
    assert "failed its own check: Out of bounds: 3" in read(tmp_path, run).notes[0]


def test_rows_whose_results_in_place_are_wrong_are_said(tmp_path):
    log = read(tmp_path, re.sub(r"0$", "3", REDUCE, flags=re.MULTILINE))
    assert len(log.calls) == len(TIMES)
    assert any("results in place are wrong in some rows" in note for note in log.notes)


def test_a_root_that_is_no_rank_is_refused(tmp_path):
    assert "root: 99 is not one of" in refused(tmp_path, re.sub(r"sum +(-1|0)", "sum 99", REDUCE))


def test_rccl_tests_on_mi300x(tmp_path):
    """A row as printed in crickett-hpe/hpc-ai-envs pull request 30, its ranks and host renamed."""
    ranks = "".join(
        f"#  Rank  {rank} Group  0 Pid  37300 on   node device  {rank} [0000:05:00] "
        "AMD Instinct MI300X\n"
        for rank in range(8)
    )
    row = (
        "     8388608       2097152     float     sum      -1    91.10   92.08  161.14      0"
        "    94.94   88.36  154.63      0\n"
    )
    text = (
        CONFIG.format(gpus=8, low=8 * MIB, high=8 * MIB) + "rccl-tests: Version develop:83d38d9\n"
    )
    log = read(tmp_path, text + ranks + HEADS + row)
    assert (log.tool, log.library) == ("rccl-tests", "rccl")
    assert told(log) == [("all_reduce", 8, 1, 8 * MIB, pytest.approx(91.10))]


def test_rccl_tests_json_lines(tmp_path):
    """Lines of ROCm/rccl-tests pull request 93."""
    line = (
        '{{"#wrong":"0","algBw":{algbw},"busBw":0.08,"gpus":4,"inPlace":{place},"name":"AllReduce",'
        '"redop":"sum","size":1024,"time":{time},"type":"float"}}\n'
    )
    text = line.format(algbw=0.05337, place=0, time=19.18415)
    text += line.format(algbw=0.05146, place=1, time=19.89765)
    log = read(tmp_path, text)
    assert told(log) == [("all_reduce", 4, None, 1024, pytest.approx(19.18415))]
    assert log.library == "rccl"


def json_run(**changes):
    """The JSON of nccl-tests' ``-J`` (src/util.cu, version 2 of its form)."""
    way = {"time": 40.0, "alg_bw": MIB / 40e3, "bus_bw": 1.75 * MIB / 40e3, "nwrong": 0.0}
    return {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-J", "x.json"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "devices": [
                {"rank": rank, "group": 0, "hostname": f"h{rank // 4}", "device_info": "B200"}
                for rank in range(8)
            ],
        },
        "results": [
            {"size": MIB, "count": MIB // 4, "type": "float", "redop": "sum", "root": "    -1"}
            | {"out_of_place": way, "in_place": way | changes}
        ],
        "average_bus_bandwidth": {"bandwidth": way["bus_bw"], "okay": "unchecked"},
    }


def test_nccl_tests_json(tmp_path):
    log = read(tmp_path, json.dumps(json_run()))
    assert told(log) == [("all_reduce", 8, 2, MIB, pytest.approx(40.0))]
    assert log.devices == ("B200",)
    assert "breaks" in refused(tmp_path, json.dumps(json_run())[:-40])


@pytest.mark.parametrize("lacks", ["out_of_place", "in_place"])
def test_a_row_may_have_one_of_both_timings(tmp_path, lacks):
    """What the rows with both say tells an all-gather from an all-to-all."""
    run = json_run()
    (row,) = run["results"]
    speeds = {"alg_bw": MIB / 40e3, "bus_bw": 7 / 8 * MIB / 40e3}
    both = row | {"redop": "none"} | {w: row[w] | speeds for w in ("out_of_place", "in_place")}
    one = both | {lacks: None}
    run |= {"results": [both, one], "average_bus_bandwidth": {"bandwidth": speeds["bus_bw"]}}
    assert "--kind" in refused(
        tmp_path, json.dumps(run | {"results": [one]}).replace("all_reduce", "")
    )
    log = read(tmp_path, json.dumps(run).replace("all_reduce", ""))
    assert [(call.kind, call.size) for call in log.calls] == [("all_gather", MIB)] * 2


@pytest.mark.parametrize(("off", "is_right"), [(0.0, True), (0.005, True), (0.009, False)])
def test_a_small_mean_is_right_to_its_last_digit(tmp_path, off, is_right):
    """Bandwidths have two decimals: so has their mean, within half of the last."""
    text = printed("all_reduce_perf", "all_reduce", {MIB: 40250.0, 2 * MIB: 62500.0})
    line = next(line for line in text.splitlines() if "Avg bus" in line)
    mean = float(line.split()[-1])
    changed = text.replace(line, f"# Avg bus bandwidth    : {mean + off:g}")
    if is_right:
        assert len(read(tmp_path, changed).calls) == 2
    else:
        assert "the mean busbw of 2 rows" in refused(tmp_path, changed)


@pytest.mark.parametrize("most", [4 * MIB, 5 * MIB - 1, 5 * MIB, 8 * MIB - 1, 8 * MIB, 64 * MIB])
@pytest.mark.parametrize("step", ["2(factor)", f"{MIB}(bytes)"])
def test_a_table_without_a_mean_is_whole_if_no_further_size_was_asked_for(tmp_path, step, most):
    text = printed("all_reduce_perf", "all_reduce", TIMES).partition("# Avg")[0]
    text = text.replace("step: 2(factor)", f"step: {step}")
    text = text.replace(f"maxBytes {4 * MIB}", f"maxBytes {most}")
    following = 8 * MIB if "factor" in step else 5 * MIB
    if following <= most:
        assert "truncated" in refused(tmp_path, text)
    else:
        assert len(read(tmp_path, text).calls) == 3


def test_osu_s_sizes_are_a_rank_s_own(tmp_path):
    head = "\n# OSU MPI-CUDA {} Latency Test v7.1\n# Size       Avg Latency(us)\n"
    rows = "1024              12.50\n1048576          310.00\n"
    eight = Layout(ranks=8, nodes=2)
    whole = read(tmp_path, head.format("Allreduce") + rows, eight)
    assert told(whole)[0] == ("all_reduce", 8, 2, 1024, pytest.approx(12.5))
    assert whole.library == "mpi"
    shares = read(tmp_path, head.format("Allgather") + rows, eight)
    assert told(shares)[1] == ("all_gather", 8, 2, 8 * MIB, pytest.approx(310))
    assert "--ranks" in refused(tmp_path, head.format("Allreduce") + rows)
    barrier = read(tmp_path, "# OSU MPI Barrier Latency Test v5.9\n# Avg Latency(us)\n9.1\n", eight)
    assert told(barrier) == [("barrier", 8, 2, 0.0, pytest.approx(9.1))]


def test_osu_s_messages(tmp_path):
    latency = "# OSU MPI Latency Test v5.6\n# Size          Latency (us)\n8     1.61\n"
    assert told(read(tmp_path, latency)) == [("send_receive", 2, None, 8, pytest.approx(1.61))]
    speed = "# OSU MPI-CUDA Bandwidth Test v7.1\n# Size      Bandwidth (MB/s)\n4194304  24000.0\n"
    (call,) = read(tmp_path, speed, Layout(nodes=2)).calls
    assert (call.nodes, call.streamed) == (2, True)
    assert call.size / call.time == pytest.approx(24e9)
    with pytest.raises(TraceError, match="'0' is not a bandwidth"):
        read(tmp_path, speed.replace("24000.0", "0"), Layout(ranks=2))
    both = "# OSU MPI Bi-Directional Bandwidth Test v7.1\n# Size  Bandwidth (MB/s)\n4  3\n"
    assert "left out" in refused(tmp_path, both)


def test_perftest_s_megabytes_are_of_two_to_the_twenty(tmp_path):
    """The row is one that a public page shows; the rate of its messages says which MB it is."""
    head = "                    RDMA_Write BW Test\n Dual-port       : OFF\n"
    table = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    row = " 65536      1000             2757.96            2757.93\t\t   0.044127\n"
    (call,) = read(tmp_path, head + table + row).calls
    assert (call.kind, call.ranks, call.nodes, call.streamed) == (LINK, 2, 2, True)
    assert call.size / call.time == pytest.approx(0.044127e6 * 65536, rel=1e-4)
    gbits = table.replace("MB/sec", "Gb/sec") + " 65536  1000  23.2  23.135  0.044127\n"
    (other,) = read(tmp_path, gbits).calls
    assert other.time == pytest.approx(call.time, rel=1e-3)
    wrong = table + " 65536  1000  23.2  23.135  0.044127\n"
    assert "unit" in refused(tmp_path, wrong)


@pytest.mark.parametrize(
    ("unit", "amount"), [("MB/sec", 2**20), ("MiB/sec", 2**20), ("Gb/sec", 125_000_000)]
)
def test_perftest_s_bandwidth_is_the_same_in_every_unit(tmp_path, unit, amount):
    rate = 12.5e9
    text = f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
    text += f" 65536  1000  {rate / amount}  {rate / amount}  {rate / 65536e6:.6f}\n"
    (call,) = read(tmp_path, text).calls
    assert call.size / call.time == pytest.approx(rate)


WIDTHS = {
    1: ("int8", "uint8", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"),
    2: ("half", "bfloat16"),
    4: ("float", "int32", "uint32"),
    8: ("double", "int64", "uint64"),
}
"""Of nccl-tests, src/common.cu: ``ncclTypeSize``."""


@pytest.mark.parametrize(
    ("dtype", "width"), [(name, width) for width, names in WIDTHS.items() for name in names]
)
def test_elements_have_the_width_of_their_type(tmp_path, dtype, width):
    options = {"hosts": ("one",) * 3, "dtype": dtype}
    text = printed("all_reduce_perf", "all_reduce", TIMES, width=width, **options)
    assert len(read(tmp_path, text).calls) == len(TIMES)
    torn = printed("all_reduce_perf", "all_reduce", TIMES, width=2 * width, **options)
    assert f"elements of type {dtype} are not {MIB} B" in refused(tmp_path, torn)
    options["hosts"] = ("one",) * 2  # of an all-reduce, not of half of the ranks
    torn = printed("all_reduce_perf", "all_reduce", TIMES, width=2 * width, **options)
    assert f"elements of type {dtype} are not {MIB} B" in refused(tmp_path, torn)


def test_perftest_s_latency(tmp_path):
    text = (
        "                    RDMA_Write Latency Test\n"
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
        "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
        " 2       1000          1.52           4.10         1.55     \t       1.56"
        "        \t0.05   \t\t1.70    \t\t4.10   \n"
    )
    (call,) = read(tmp_path, text).calls
    assert (call.kind, call.streamed) == (LINK, False)
    assert call.time == pytest.approx(1.55e-6)


def row(text, number):
    """Line of the ``number``-th row of a printed table."""
    rows = [line for line in text.splitlines() if line.strip()[:1].isdigit()]
    return rows[number]


TABLE = "kind,nodes,ranks,size_bytes,time_us\nall_reduce,1,8,1024,20\nall_reduce,1,8,2048,21\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (REDUCE.replace(" 62.50 ", " 0.06250 "), "unit"),
        (REDUCE.replace(" 62.50 ", "   nan "), "'nan' is not a time"),
        (REDUCE[: REDUCE.index(row(REDUCE, 2)) + 70], "truncated"),
        (REDUCE[: REDUCE.index(row(REDUCE, 2))], "truncated"),
        (REDUCE.replace(row(REDUCE, 1) + "\n", ""), "rows are missing"),
        (REDUCE.replace(row(REDUCE, 0) + "\n", ""), "rows are missing"),
        (REDUCE.replace("     262144 ", "     262145000 "), "elements"),
        (REDUCE.replace("time", "cputime"), "CPU"),
        (REDUCE.replace("(GB/s)", "(MB/s)"), "unit 'MB/s'"),
        (REDUCE.replace("(B)", "(KB)"), "unit 'KB'"),
        (REDUCE.replace("H100", "A100", 4), "two machines"),
        (CONFIG.format(gpus=8, low=8, high=8), "no calls"),
        (REDUCE.replace("all_reduce_perf", "hypercube_perf"), "hypercube"),
        (TABLE.replace("time_us", "time"), "time with its unit"),
        (TABLE.replace("size_bytes", "size"), "size with its unit"),
        (TABLE.replace(",21", ",nan"), "'nan' is not a time"),
        (TABLE.replace(",21", ",0"), "'0' is not a time"),
        (TABLE.replace(",21", ""), "truncated"),
        (TABLE.replace("all_reduce,1,8,2048", "gossip,1,8,2048"), "'gossip'"),
        (TABLE.replace("1,8,2048", "3,8,2048"), "evenly"),
        (TABLE.replace("1,8,2048", "1,eight,2048"), "whole number"),
        (TABLE[: TABLE.index("\n") + 1], "has no rows"),
        (
            "system," + TABLE.replace("\nall", "\nx,all", 1).replace("\nall", "\ny,all", 1),
            "machines",
        ),
        (TABLE.replace(",21", ",21,7"), "too long"),
        (
            TABLE.replace("time_us", "time_us,time_ms")
            .replace("0\n", "0,20\n")
            .replace("1\n", "1,0.021\n"),
            "unit",
        ),
        (
            TABLE.replace("time_us", "time_us,algbw_GBps")
            .replace("0\n", "0,0.5\n")
            .replace("1\n", "1,nan\n"),
            "algbw_gbps would be 0.0512, not 0.5",
        ),
        (
            "gpu," + TABLE.replace("\nall", "\nH100,all", 1).replace("\nall", "\nA100,all", 1),
            "gpu: rows of 2 machines",
        ),
        ('{"kind": "all_reduce", "ranks": 8, "size_bytes": 8, "time_us": 2', "not JSON"),
        ('[{"kind": "all_reduce", "ranks": 8, "size_bytes": 8, "time_us": null}]', "'None'"),
        (
            '[{"kind": "all_reduce", "ranks": 8, "size_bytes": 8, "time_us": 2}, {"ranks": 8}]',
            "row 2: kind: '' is not one of",
        ),
        (
            "op_name,allreduce_dtype,num_gpus,message_size,latency\nall_reduce,half,8,512,0.01\n",
            "serving framework",
        ),
        ("hello\n", "is not a known kind of log"),
        ("", "is not a known kind of log"),
    ],
)
def test_what_is_torn_or_contradicts_itself_is_refused_in_one_line(tmp_path, text, said):
    assert said in refused(tmp_path, text)


def test_processes_have_the_gpus_that_they_were_given(tmp_path):
    config, rest = REDUCE.split(" minBytes", 1)
    text = f"{config.rpartition(' ')[0]} 7 minBytes{rest}"
    assert "ranks of processes with 7 GPUs each" in refused(tmp_path, text)


def test_ranks_are_missed_unless_they_are_in_another_group(tmp_path):
    """A communicator that is split leaves gaps in the ranks of its first group."""
    others = re.sub(r"(Rank  [1357] Group ) 0", r"\1 1", REDUCE)
    halved = printed("all_reduce_perf", "all_reduce", TIMES, hosts=("one",) * 4)
    rows, own = others[: others.index(HEADS)], halved[halved.index(HEADS) :]
    assert {call.ranks for call in read(tmp_path, rows + own).calls} == {4}
    second = next(line for line in REDUCE.splitlines(keepends=True) if "Rank  1" in line)
    torn = REDUCE.replace(second, "").replace("Group  0 ", "")
    assert "rank 1 is missing before rank 2" in refused(tmp_path, torn)


def test_a_lone_number_is_no_row_and_two_are_a_torn_one(tmp_path):
    last = row(REDUCE, 2)
    assert told(read(tmp_path, REDUCE.replace(last, f"17\n{last}"))) == told(read(tmp_path, REDUCE))
    assert "truncated" in refused(tmp_path, REDUCE.replace(last, f"{last}\n17 18"))


def test_rows_of_no_bytes_have_no_elements(tmp_path):
    """An all-to-all of fewer bytes than ranks moves none; bytes of no elements are an error."""
    first = row(REDUCE, 0)
    nothing = f"0 0 float sum -1{' 4.00 0.00 0.00 0' * 2}"
    text = REDUCE.replace(first, f"{nothing}\n{first}").partition("# Avg")[0]
    assert len(read(tmp_path, text).calls) == len(TIMES)
    assert "0 elements" in refused(tmp_path, REDUCE.replace("     262144 ", "          0 "))


def test_processes_that_ran_by_themselves(tmp_path):
    twice = REDUCE.replace("Group  0 ", "").replace("Rank  1", "Rank  0")
    assert "MPI=1" in refused(tmp_path, twice)


def test_logs_of_two_machines(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(REDUCE)
    other.write_text(
        printed("all_reduce_perf", "all_reduce", TIMES, device="NVIDIA A100-SXM4-80GB")
    )
    with pytest.raises(TraceError, match=r"one: NVIDIA H100.*other: NVIDIA A100.*two machines"):
        read_logs([one, other])


@pytest.mark.parametrize(("first", "refused_for"), [(4096, "rows are missing"), (2048, "")])
def test_a_size_that_is_left_out_is_missed_from_4_kib_on(tmp_path, first, refused_for):
    """Smaller sizes are rounded to elements of all ranks: they do not grow by the factor."""
    times = {first: 20.0, 4 * first: 21.0, 8 * first: 22.0}
    text = printed("all_reduce_perf", "all_reduce", times)
    if refused_for:
        assert refused_for in refused(tmp_path, text)
    else:
        assert len(read(tmp_path, text).calls) == 3


def test_threads_and_gpus_that_json_does_not_name_are_one(tmp_path):
    run = json_run()
    del run["config"]["nthreads"], run["config"]["ngpus"]
    assert told(read(tmp_path, json.dumps(run))) == told(read(tmp_path, json.dumps(json_run())))


def test_the_user_may_not_contradict_the_log(tmp_path):
    assert "--ranks 4" in refused(tmp_path, REDUCE, Layout(ranks=4))
    assert "--nodes 2" in refused(tmp_path, REDUCE, Layout(nodes=2))


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TraceError, match="nowhere"):
        read_logs([tmp_path / "nowhere"])


def lines_with(before, text):
    return "".join(f"{before}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "before",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-node-7@1,0]<stdout>: ",
        "[job-1,0]<stdout>: ",
        "Mon Nov 10 12:00:01 2025[1,0]<stdout>:",
        "0: ",
        " 0: ",
        "[0] ",
        "node07: ",
        "> ",
        "2025-11-10 12:00:01,123 ",
        "2025-11-10T12:00:01.123456789Z stdout F ",
        "\x1b[32m",
    ],
)
def test_what_launchers_loggers_and_terminals_put_before_a_line_is_no_part_of_it(tmp_path, before):
    plain = told(read(tmp_path, REDUCE))
    assert told(read(tmp_path, lines_with(before, REDUCE))) == plain
    alone = Layout(ranks=8, nodes=1)
    for text in (OSU_REDUCE, PERFTEST):
        assert told(read(tmp_path, lines_with(before, text), alone)) == told(
            read(tmp_path, text, alone)
        )


OSU_REDUCE = """# OSU MPI-CUDA Allreduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
4                      30.11
8                      30.20
"""
PERFTEST = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             197.50             197.43               0.376567
"""


def test_windows_and_pages_change_nothing(tmp_path):
    plain = told(read(tmp_path, REDUCE))
    assert told(read(tmp_path, REDUCE.replace("\n", "\r\n"))) == plain
    pasted = "".join(f"{line.lstrip('#')}\n" for line in REDUCE.splitlines())
    assert told(read(tmp_path, pasted)) == plain
    path = tmp_path / "redirected"
    path.write_bytes(REDUCE.encode("utf-16"))
    assert told(read_logs([path])[0]) == plain


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, lzma.compress, lambda data: pyarrow.compress(data, "zstd", asbytes=True)],
)
def test_a_packed_log_is_read_as_it_was_before(tmp_path, pack):
    path = tmp_path / "packed"
    for encoding in ("utf-8", "utf-16"):
        path.write_bytes(pack(REDUCE.encode(encoding)))
        assert told(read_logs([path])[0]) == told(read(tmp_path, REDUCE))
    path.write_bytes(pack(REDUCE.encode())[:-40])
    with pytest.raises(TraceError, match="damaged"):
        read_logs([path])


def test_unchecked_results_are_results(tmp_path):
    text = REDUCE.replace("      0\n", "    N/A\n").replace("      0  ", "    N/A  ")
    assert told(read(tmp_path, text)) == told(read(tmp_path, REDUCE))


@pytest.mark.parametrize("lacks", ["", "size", "time", "algBw", "busBw", "inPlace"])
def test_a_table_of_rccl_tests_has_its_five_columns(tmp_path, lacks):
    """No more are needed where the user gives the kind and the ranks."""
    row = {"size": 4000, "time": 2, "algBw": 2, "busBw": 3.5, "inPlace": 0}
    row.pop(lacks, None)
    text = f"{','.join(row)}\n{','.join(map(str, row.values()))}\n"
    layout = Layout(kind="all_reduce", ranks=8)
    if lacks:
        refused(tmp_path, text, layout)
    else:
        assert told(read(tmp_path, text, layout)) == [("all_reduce", 8, None, 4000, 2)]


@pytest.mark.parametrize(("rate", "contradicts"), [("0.001000", False), ("0.001001", True)])
def test_a_rate_of_few_digits_contradicts_no_bandwidth(tmp_path, rate, contradicts):
    head = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    text = f"{head} 65536  1000  2757.9  2757.9  {rate}\n"
    if contradicts:
        assert "unit" in refused(tmp_path, text)
    else:
        assert len(read(tmp_path, text).calls) == 1


def test_rows_of_json_need_not_all_name_the_same(tmp_path):
    rows = [{"kind": "all_reduce", "size_bytes": 8, "time_us": 2}] * 2
    for named in (0, 1):  # whichever row says it
        some = [row | ({"ranks": 4} if n == named else {}) for n, row in enumerate(rows)]
        log = read(tmp_path, json.dumps(some), Layout(ranks=4))
        assert [call.ranks for call in log.calls] == [4, 4]
        assert "4 ranks, but --ranks 2" in refused(tmp_path, json.dumps(some), Layout(ranks=2))


@pytest.mark.parametrize(
    ("title", "library"),
    [("MPI-CUDA", "mpi"), ("NCCL-CUDA", "nccl"), ("XCCL-NCCL", "nccl"), ("XCCL-RCCL", "rccl")],
)
def test_osu_s_title_names_the_library(tmp_path, title, library):
    log = read(tmp_path, OSU_REDUCE.replace("MPI-CUDA", title), Layout(ranks=8))
    assert log.library == library


@pytest.mark.parametrize("unit", ["ms", "ns", "s", ""])
def test_osu_s_times_are_in_its_unit(tmp_path, unit):
    with pytest.raises(TraceError, match=f"line 3: unit '{unit}' is not one that OSU writes"):
        read(tmp_path, OSU_REDUCE.replace("(us)", f"({unit})"), Layout(ranks=8))


def test_osu_s_wrong_results_are_left_out(tmp_path):
    text = OSU_REDUCE.replace("30.11", "30.11  Fail").replace("30.20", "30.20  Pass")
    log = read(tmp_path, text, Layout(ranks=8))
    assert [call.size for call in log.calls] == [8]
    assert "wrong results" in log.notes[0]
