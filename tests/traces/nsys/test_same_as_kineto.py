"""The same program, recorded by Nsight Systems and by PyTorch's profiler, is the same workload."""

import gzip
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, assume, given, settings

from experiments.scenario.scenario import Scenario
from helpers.kineto_jobs import Step, build_job, jobs, starts
from helpers.link_tapes import Tape
from helpers.nsys_files import KERNEL, VERSIONS, as_parquet, write_export
from helpers.places import SAMPLES, SHARED
from simulator.support.errors import TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.core.events import Job
from traces.core.loaded import Loaded
from traces.kineto.directory import read_job
from traces.kineto.write import write_kineto
from traces.load import input_files, load, recognised
from traces.nsys import read_exports
from traces.profiler.link import link_job

SAMPLE = SAMPLES / "gpu-dp2-tp4"
MEGATRON = SHARED / "traces" / "megatron-tp8-a100"
TICK = 2e-9


def calls(of: Loaded) -> list[tuple[object, ...]]:
    views = [of.workload.call_view(index) for index in range(len(of.workload.calls))]
    return [(view.kind, view.group.ranks, view.size) for view in views]


def names(of: Loaded) -> list[str]:
    """All but those of copies, which an export tells by kind."""
    load = of.workload
    named = zip(load.what.tolist(), load.name.tolist(), strict=True)
    return ["" if what == What.COPY else load.names[name] for what, name in named]


def assert_same(found: Loaded, truth: Loaded) -> None:
    """Ops, edges and lags in the same order; names of groups and dtypes are not in an export."""
    one, other = found.workload, truth.workload
    assert names(found) == names(truth)
    assert calls(found) == calls(truth)
    for column in ("what", "rank", "call"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
    for column in ("duration", "measured_start", "measured_end", "ready"):
        np.testing.assert_allclose(getattr(one, column), getattr(other, column), atol=TICK, rtol=0)
    np.testing.assert_array_equal(one.edges.source, other.edges.source)
    np.testing.assert_array_equal(one.edges.target, other.edges.target)
    np.testing.assert_allclose(one.edges.lag, other.edges.lag, atol=TICK, rtol=0)
    assert found.measured_step == pytest.approx(truth.measured_step, abs=TICK)
    assert dict(found.coverage.starts) == dict(truth.coverage.starts)
    assert found.coverage.launches_paired == truth.coverage.launches_paired
    assert found.coverage.collectives_matched == truth.coverage.collectives_matched


@pytest.fixture(scope="module")
def sample() -> Job:
    return read_job(SAMPLE)


LINKED: dict[str, Loaded] = {}
"""Steps of the sample that were linked before."""


def step_of(sample: Job, step: str) -> Loaded:
    if step not in LINKED:
        LINKED[step] = link_job(SAMPLE, sample, step)
    return LINKED[step]


@pytest.mark.parametrize(("version", "packed"), [("2026", False), ("2021", True)])
def test_the_sample_is_the_same_workload(
    tmp_path: Path, sample: Job, version: str, packed: bool
) -> None:
    path = write_export(tmp_path / "anything", sample.ranks, version)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    found = load(path, "median")
    assert_same(found, step_of(sample, "median"))
    assert found.coverage.steps == (1, 2, 3)
    assert found.coverage.sizes_known == found.coverage.collectives == 72


def test_tables_in_parquet_are_the_same_workload(tmp_path: Path, sample: Job) -> None:
    """One directory for each host, and one alone; a table that is cut short is refused."""
    for host, ranks in (("a", sample.ranks[:4]), ("b", sample.ranks[4:])):
        export = write_export(tmp_path / f"{host}.sqlite", ranks, "2026")
        as_parquet(export, tmp_path / f"{host}_pqtdir")
        export.unlink()
    assert_same(load(tmp_path, "2"), step_of(sample, "2"))
    alone = tmp_path / "a_pqtdir"
    assert recognised(alone) == "nsys"
    assert len(read_exports(alone).ranks) == 4
    assert alone / "StringIds.parquet" in input_files(alone)
    kernels = alone / f"{KERNEL}.parquet"
    with pytest.raises(TraceError, match="one table of an export"):
        load(kernels)
    whole = kernels.read_bytes()
    kernels.write_bytes(whole[:-9])
    with pytest.raises(TraceError, match=f"{KERNEL}.parquet: not a whole table"):
        read_exports(tmp_path)
    pq.write_table(pq.read_table(io.BytesIO(whole)).drop_columns(["streamId"]), kernels)
    with pytest.raises(TraceError, match=f"{KERNEL}.*streamId"):
        load(alone)


def test_a_file_per_host_is_the_same_workload(tmp_path: Path, sample: Job) -> None:
    """Their clocks count from different times: the one from the session's start, one from boot."""
    write_export(tmp_path / "host-a.sqlite", sample.ranks[:4], "2026")
    write_export(tmp_path / "host-b.sqlite", sample.ranks[4:], "2021")
    (tmp_path / "notes.txt").write_text("a run")
    found = load(tmp_path, "2")
    assert_same(found, step_of(sample, "2"))
    assert found.coverage.clock_offset == {}
    assert [reason for _, reason in found.coverage.skipped] == ["no Nsight Systems export"]


def pairs(folder: Path) -> Job:
    """Four ranks: all-reduces of (0, 1) and of (2, 3) end apart, then one of all."""
    groups = [("1", "tp", (0, 1)), ("2", "tp", (2, 3)), ("0", "world", range(4))]
    for rank in range(4):
        tape = Tape(rank, 4, groups)
        late = 250 * (rank // 2)
        for number in range(3):
            at = 600 * number
            tape.launch(at, 7, at + 5, 80 + 10 * rank, "gemm")
            begun = at + 90 + 10 * rank
            key = "1" if rank < 2 else "2"
            end = at + 200 + late + rank % 2
            tape.collective(at + 10, 20, begun, end - begun, group=key, elements=1 << 10)
        tape.collective(1820, 24, 1840 + rank, 100 - rank, group="0", elements=1 << 8)
        tape.write(folder)
    return read_job(folder)


def test_without_payloads_communicators_are_told_by_what_ends_together(tmp_path: Path) -> None:
    truth = pairs(tmp_path)
    path = write_export(tmp_path / "a.sqlite", truth.ranks, payloads=False)
    found, expected = load(path, "median"), link_job(tmp_path, truth)
    assert [one[:2] for one in calls(found)] == [one[:2] for one in calls(expected)]
    assert found.coverage.collectives_matched == 7
    assert found.coverage.sizes_known == 0
    assert any("3 inferred from" in note for note in found.coverage.notes)
    assert any("no message sizes" in note for note in found.coverage.notes)
    transfer = found.workload.calls.transfer
    np.testing.assert_allclose(transfer, expected.workload.calls.transfer, atol=TICK)


def test_sends_to_and_receives_from_all_are_an_all_to_all(tmp_path: Path) -> None:
    for rank in range(2):
        tape = Tape(rank, 2, [("0", "world", (0, 1))])
        tape.launch(0, 7, 5, 80 + rank, "gemm")
        tape.collective(20, 20, 90 + rank, 100 - rank, kind="all_to_all", elements=1 << 10)
        tape.wait(45)
        tape.launch(50, 7, 195, 10, "after")
        tape.write(tmp_path)
    truth = read_job(tmp_path)
    found = load(write_export(tmp_path / "a.sqlite", truth.ranks), "median")
    assert calls(found) == calls(link_job(tmp_path, truth)) == [("all_to_all", (0, 1), 4096.0)]


@settings(max_examples=10, phases=(Phase.generate,))
@given(jobs, starts)
def test_any_job_is_the_same_workload(
    tmp_path_factory: pytest.TempPathFactory, job: list[Step], ready: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("job")
    scenario = Scenario(build_job(job, ready), load_cluster("dgx-a100"), nodes=2)
    write_kineto([scenario.run()], folder / "kineto")
    truth = read_job(folder / "kineto")
    assume(all(len(rank.device) for rank in truth.ranks))
    path = write_export(folder / "a.sqlite", truth.ranks)
    assert_same(load(path, "1"), link_job(folder, truth, "1"))


@pytest.mark.parametrize("version", VERSIONS)
def test_one_process_is_the_same_workload_in_every_version(tmp_path: Path, version: str) -> None:
    tape = Tape(world=1, groups=[("0", "world", (0,))])
    tape.step(1, 0, 1000)
    tape.host("aten::linear", 0, 30)
    tape.launch(5, 7, 12, 100, "a")
    tape.collective(40, 24, 115, 50, elements=1 << 12)
    tape.wait(65)
    tape.launch(70, 7, 168, 20, "b")
    tape.launch(80, 7, 190, 20, "Memcpy DtoH (Device -> Pageable)")
    tape.call("cudaStreamSynchronize", 90, 125)
    truth = read_job(tape.write(tmp_path))
    path = write_export(tmp_path / "a.sqlite", truth.ranks, version)
    found, expected = load(path, "median"), link_job(tmp_path, truth)
    np.testing.assert_allclose(found.workload.duration, expected.workload.duration, atol=TICK)
    np.testing.assert_allclose(found.workload.edges.lag, expected.workload.edges.lag, atol=TICK)
    if version != "2019":
        assert_same(found, expected)


def test_recorded_waits_need_their_events(tmp_path: Path) -> None:
    """Newer exports tell which record of an event a wait is for, older ones the last before it."""
    tape = Tape()
    tape.step(1, 0, 1000)
    tape.launch(0, 7, 5, 100, "producer")
    first = tape.call("cudaEventRecord", 10, 1)
    tape.launch(20, 7, 110, 300, "later")
    tape.call("cudaEventRecord", 30, 1)
    wait = tape.call("cudaStreamWaitEvent", 40, 1)
    tape.sync(
        "Stream Wait Event",
        40,
        1,
        stream=20,
        device=0,
        correlation=wait,
        wait_on_stream=7,
        wait_on_cuda_event_record_corr_id=first,
    )
    tape.launch(50, 20, 107, 10, "consumer")
    truth = read_job(tape.write(tmp_path))
    assert truth.ranks[0].syncs[0].record_correlation == first
    for version in ("2026", "2021"):
        path = write_export(tmp_path / "a.sqlite", truth.ranks, version)
        (sync,) = read_exports(path).ranks[0].syncs
        assert (sync.stream, sync.source_stream) == ("stream 20", "stream 7")
        assert (sync.correlation, sync.record_correlation) == (wait, first)
        assert_same(load(path, "1"), link_job(tmp_path, truth, "1"))


@pytest.mark.skipif(not MEGATRON.is_dir(), reason="the real traces are not at hand")
@pytest.mark.slow
def test_the_megatron_job_is_the_same_workload(tmp_path: Path) -> None:
    truth = read_job(MEGATRON)
    two = replace(truth, ranks=truth.ranks[:2])
    path = write_export(tmp_path / "a.sqlite", two.ranks)
    found, expected = load(path, "3"), link_job(MEGATRON, two, "3")
    assert found.coverage.collectives == expected.coverage.collectives == 84
    assert found.measured_step == pytest.approx(expected.measured_step, abs=1e-6)
    one, other = (loaded.workload for loaded in (found, expected))
    device, same = (work.duration[work.what != What.HOST] for work in (one, other))
    np.testing.assert_allclose(device, same, atol=TICK)
    # An export tells fewer of the host's events, so that long pauses are usual: no silences there.
    host, whole = (float(work.duration[work.what == What.HOST].sum()) for work in (one, other))
    assert host == pytest.approx(whole, abs=1e-6)
    assert [one[2] for one in calls(found)] == [one[2] for one in calls(expected)]
