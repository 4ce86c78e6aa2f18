"""AMD's recordings: one recording in three forms is one step, and real files say what they hold."""

import gzip
import json
import math
import sqlite3
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from helpers.rocm_files import UUID, WRITERS, rocprofv3, two_steps, write_rocpd, write_rpd
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.core.gpu_exports.export import blocks_of
from traces.load import load, recognised
from traces.rocm.reader import read_rocm

SHARED = Path(__file__).parents[3].parent / "shared/traces/formats"
shared = pytest.mark.skipif(not SHARED.exists(), reason="no shared traces beside the checkout")


@pytest.fixture(scope="module", params=WRITERS)
def file(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return WRITERS[request.param](folder / "recording", two_steps())


def test_each_form_is_recognised_and_is_the_same_step(file):
    assert recognised(file) == "rocm"
    loaded = load(file, "1")
    assert loaded.coverage.steps == (0, 1)
    assert loaded.coverage.kernels == loaded.coverage.launches_paired == 2
    workload = loaded.workload
    names = np.array(workload.names)[workload.name]
    on_device = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    seconds = dict(zip(names[on_device], workload.duration[on_device], strict=True))
    assert seconds == pytest.approx({"gemm": 280e-6, "Memcpy HtoD": 100e-6, "norm": 90e-6})
    (rank,) = read_rocm(file).ranks
    assert np.nansum(rank.device.moved) == 2 << 20
    assert loaded.coverage.starts_explained == 1
    assert loaded.measured_step == pytest.approx(1e-3)  # steps begin so far apart


def test_the_accelerator_is_named_where_the_form_has_it(file):
    want = "" if "rpd" in str(file.parent) else "AMD Instinct MI300X"
    assert load(file).accelerator == want


def test_processes_of_a_directory_are_ranks(tmp_path):
    for rank in range(2):
        later = [replace(event, end=event.end + rank) for event in two_steps()]
        write_rocpd(tmp_path / f"rank{rank}.db", later)
    loaded = load(tmp_path, "0")
    assert loaded.coverage.ranks == (0, 1)
    assert loaded.coverage.kernels == 4


def test_a_grid_has_as_many_workgroups_as_cover_its_work_items():
    """Those of each of its three sides; of a side of no items or of none recorded nobody knows."""
    kernels = np.array(
        list(product((-1, 0, 1, 64, 65), (1, 128), (96,), (-1, 0, 1, 64), (1, 32), (8,)))
    )
    grid, group = kernels[:, :3], kernels[:, 3:]
    counts = blocks_of(list(grid.T), list(group.T)).tolist()
    for work, size, count in zip(grid.tolist(), group.tolist(), counts, strict=True):
        recorded = min(*work, *size) > 0
        sides = zip(work, size, strict=True)
        assert count == (math.prod(-(-n // m) for n, m in sides) if recorded else -1)


def _by_lane(trace):
    return Counter(trace.device.stream.tolist())


@shared
@pytest.mark.parametrize("name", ["mytrace.rpd.gz", "matmul_result.rpd"])
def test_a_real_rpd_holds_what_sqlite_finds_in_it(name, tmp_path):
    source = SHARED / "rpd" / name
    data = source.read_bytes()
    plain = tmp_path / "plain"
    plain.write_bytes(gzip.decompress(data) if name.endswith("gz") else data)
    with sqlite3.connect(plain) as database:
        (ops, seconds), *_ = database.execute('select count(*), sum("end" - start) from rocpd_op')
        ((moved,),) = database.execute("select sum(size) from rocpd_copyapi")
        ((calls,),) = database.execute(
            "select count(*) from rocpd_api join rocpd_string s on s.id = apiName_id "
            "where s.string like 'hip%'"
        )
    database.close()
    from traces.rocm.reader import _file

    export = _file(source).export
    assert len(export.device) == ops
    assert int((export.device["end"] - export.device["start"]).sum()) == seconds
    assert int(export.device["bytes"][export.device["bytes"] > 0].sum()) == moved
    assert len(export.runtime) == calls
    assert len(np.intersect1d(export.device["correlationId"], export.runtime["correlationId"]))
    assert (export.device["correlationId"] >= 0).all()


@shared
def test_ops_launched_before_the_first_step_are_said(tmp_path):
    """They are no part of "all" steps: 13 of 10,124 were left out without a word."""
    (plain := tmp_path / "plain").write_bytes(
        gzip.decompress((source := SHARED / "rpd/mytrace.rpd.gz").read_bytes())
    )
    with sqlite3.connect(plain) as database:
        ((before,),) = database.execute(
            "select count(*) from rocpd_api_ops join rocpd_api a on a.id = api_id where a.start < "
            "(select min(start) from rocpd_api join rocpd_string s on s.id = args_id "
            "where s.string like '%execute_model%')"
        )
    database.close()
    name = "device ops launched outside all steps"
    assert load(source, "all").coverage.unused[name] == before == 13
    assert name not in load(source, "3").coverage.unused


@shared
def test_real_json_of_rocprofv3_holds_what_json_finds_in_it():
    source = SHARED / "rocprofv3_json/rocprof_908.json.gz"
    with gzip.open(source) as file:
        (raw,) = json.load(file)["rocprofiler-sdk-tool"]
    kernels = raw["buffer_records"]["kernel_dispatch"]
    (rank,) = read_rocm(source).ranks
    assert len(rank.device) == len(kernels)
    total = sum(row["end_timestamp"] - row["start_timestamp"] for row in kernels)
    assert float((rank.device.end - rank.device.start).sum()) == pytest.approx(total / 1e9)
    assert len(_by_lane(rank)) == len({row["stream_id"]["handle"] for row in kernels})
    names = {row["kernel_id"]: row["formatted_kernel_name"] for row in raw["kernel_symbols"]}
    want = Counter(names[row["dispatch_info"]["kernel_id"]] for row in kernels)
    assert Counter(np.array(rank.names)[rank.device.name].tolist()) == want
    assert rank.accelerator == "AMD Instinct MI350X"


def edited(change):
    document = rocprofv3(two_steps())
    change(document["rocprofiler-sdk-tool"][0])
    return json.dumps(document)


DAMAGED = {
    "no process": ('{"rocprofiler-sdk-tool": []}', "has no process"),
    "cut": (edited(lambda _: None)[:-40], "rocprofv3's JSON"),
    "text": (edited(lambda part: part["metadata"].update(pid="x")), "pid"),
    "nothing": (edited(lambda part: part["buffer_records"].clear()), "no kernel"),
    "backwards": (
        edited(lambda part: part["buffer_records"]["hip_api"][0].update(end_timestamp=1)),
        "a call of HIP begins at",
    ),
    "operation": (
        edited(lambda part: part["buffer_records"]["hip_api"][0].update(operation=99)),
        "no operation 99",
    ),
}


@pytest.mark.parametrize(("text", "why"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_json_is_refused_in_one_line(tmp_path, text, why):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=why) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("drop table rocpd_string", "rocpd_string lacks id"),
        ("delete from rocpd_op", "no kernel and no copy"),
        ("update rocpd_op set start = 'x'", "not a whole number"),
        ("alter table rocpd_op rename column queueId to lane", "no column 'queueId'"),
    ],
)
def test_a_damaged_rpd_is_refused_in_one_line(tmp_path, change, why):
    file = write_rpd(tmp_path / "a.rpd", two_steps())
    with sqlite3.connect(file) as database:
        database.execute(change)
    database.close()
    with pytest.raises(TraceError, match=why):
        load(file)


@pytest.mark.parametrize(
    ("write", "table"), [(write_rpd, "rocpd_api"), (write_rocpd, f"rocpd_region{UUID}")]
)
def test_calls_and_marks_that_have_no_end_are_counted_and_wrong_ones_are_refused(
    tmp_path, write, table
):
    file = write(tmp_path / "a.db", two_steps())
    with sqlite3.connect(file) as database:
        database.execute(f'update "{table}" set end = null where id in (1, 6)')  # the marks
    assert {kind: n for kind, n in load(file).coverage.unused.items() if "without an end" in kind}
    with sqlite3.connect(file) as database:
        database.execute(f'update "{table}" set end = 5 where id = 1')
    database.close()
    with pytest.raises(TraceError, match="a mark begins at 10000000 ns and ends at 5 ns"):
        load(file)


def test_a_rocpd_of_another_schema_is_refused_with_what_to_do(tmp_path):
    file = write_rocpd(tmp_path / "a.db", two_steps())
    with sqlite3.connect(file) as database:
        tables = database.execute("select name from sqlite_master where name like '%dispatch%'")
        ((table,),) = tables
        database.execute(f'alter table "{table}" rename column start to start_id')
    database.close()
    with pytest.raises(TraceError, match="rocpd convert"):
        load(file)


@pytest.mark.parametrize("write", WRITERS.values())
def test_kernels_without_names_are_refused(write, tmp_path):
    events = [replace(event, name="") if event.runs else event for event in two_steps()]
    write(tmp_path / "run.db", events)
    with pytest.raises(TraceError, match="its kernels have no names"):
        read_rocm(tmp_path / "run.db")
