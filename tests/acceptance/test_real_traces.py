"""Whole real traces, where they are at hand: each is replayed as it was measured, or refused."""

from pathlib import Path

import numpy as np
import pytest

from experiments.baseline import Baseline, Settings, baseline
from experiments.evaluate.serving_plan import instances_of, serving_plan
from experiments.scenario.resources import improve
from helpers.places import SHARED
from simulator.support.errors import TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.kineto.directory import read_job
from traces.profiler.window import pair, step_window, typical_latency

TRACES = SHARED / "traces"
MEGATRON = TRACES / "megatron-tp8-a100"
KINETO = sorted((TRACES / "kineto").glob("*.json.gz"))
UNSIZED = TRACES / "kineto" / "v100_2gpu_many_allreduce_rank1.json.gz"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not at hand")


def replayed(path: Path, step: str = "median", cost: str = "trace") -> Baseline:
    settings = Settings(engine="analytic", collective_cost=cost, step=step)
    return baseline(path, load_cluster("dgx-a100"), settings)


@pytest.mark.parametrize("path", KINETO, ids=lambda path: path.name.removesuffix(".json.gz"))
@pytest.mark.slow
def test_every_step_replays_as_it_was_measured_or_is_refused(path: Path) -> None:
    """What was measured includes contention already: the engine adds none."""
    numbers = [str(step.number) for step in read_job(path).ranks[0].steps]
    for step in ("median", *["all", *numbers[-1:]]):
        try:
            found = replayed(path, step)
        except TraceError as error:
            refusal = str(error)
        else:
            refusal = ""
            assert abs(found.error) < 0.005, step
        assert refusal == "" or (str(path) in refusal and "\n" not in refusal)


def test_calls_of_unknown_size_are_not_counted_twice() -> None:
    assert abs(replayed(UNSIZED, "all").error) < 0.005


@pytest.mark.parametrize(
    ("name", "explained"),
    [
        ("a100_2gpu_resnet_ddp_rank0", 0.99),
        ("mi300x_8gpu_resnet_ddp_rank0", 0.99),
        ("a100_16gpu_dlrm_like_rank0", 0.94),
        ("v100_2gpu_many_allreduce_rank1", 0.99),
        ("v100_1gpu_resnet50_old_schema", 0.99),
    ],
)
def test_starts_are_explained(name: str, explained: float) -> None:
    found = replayed(TRACES / "kineto" / f"{name}.json.gz")
    assert found.loaded.coverage.starts_explained >= explained


@pytest.mark.parametrize(("cost", "error"), [("trace", 0.005), ("model", 0.05)])
def test_the_megatron_job_replays(cost: str, error: float) -> None:
    found = replayed(MEGATRON, cost=cost)
    coverage = found.loaded.coverage
    assert coverage.collectives == coverage.collectives_matched == coverage.sizes_known == 84
    assert coverage.starts_explained >= 0.98
    assert abs(found.error) <= error
    load, times = found.loaded.workload, found.timeline
    joins = load.what == What.COLLECTIVE
    assert np.count_nonzero(joins) == 8 * 84
    for rank in range(8):
        own = joins & (load.rank == rank)
        for simulated, measured in (
            (times.start, load.measured_start),
            (times.end, load.measured_end),
        ):
            assert np.median(np.abs(simulated[own] - measured[own])) < 1e-3


GRAPHS = TRACES / "graphs"


def asked(name: str) -> tuple[Baseline, float, float]:
    """A trace of serving with graphs, and the utilities of compute and of the host (%)."""
    found = replayed(GRAPHS / f"{name}.json.gz")
    base = found.timeline.makespan
    faster = (improve(found.scenario, one, 2.0).run().makespan for one in ("compute", "host"))
    compute, host = (100 * (base - step) / base for step in faster)
    return found, compute, host


@pytest.mark.parametrize("path", sorted(GRAPHS.glob("*.json.gz")), ids=lambda path: path.name[:12])
def test_the_typical_latency_of_a_launch_is_that_of_a_launch(path: Path) -> None:
    trace = read_job(path).ranks[0]
    launches = pair(trace, step_window(trace, "all"))
    assert 2e-6 < typical_latency(trace, launches) < 50e-6


def test_a_decode_with_a_hip_graph_is_bound_by_its_kernels() -> None:
    found, compute, host = asked("qwen3_30b_decode_mi300_tp")
    assert abs(found.error or 0.0) < 0.005
    assert 38 < compute < 46
    assert compute + host < 50.5


def test_a_decode_with_programmatic_dependent_launch_replays_as_measured() -> None:
    found, compute, host = asked("qwen3_30b_decode_b300_tp")
    assert abs(found.error or 0.0) < 0.02
    assert compute > 30
    assert compute + host < 50.5


@pytest.mark.parametrize(
    ("name", "cluster", "factor"), [("b300", "hgx-b300", 0.85), ("mi300", "mi300x-8", 1.42)]
)
def test_a_recorded_decode_gives_the_kernels_of_a_deployment(name, cluster, factor) -> None:
    """Those of B300 are carried over from B200's tables, those of MI300X a roofline's."""
    file = GRAPHS / f"qwen3_30b_decode_{name}_tp.json.gz"
    plan = serving_plan(model="qwen3-30b-a3b", engine="sglang", rate="1/s", kernels_from=file)
    host = instances_of(plan, cluster).deployment.engine.host
    assert host.kernels == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("name", ["sglang_qwen3_8b_decode", "vllm_piecewise_prefilldecode"])
def test_a_batch_in_flight_when_a_recording_begins_is_compute_and_said(name: str) -> None:
    """Their first kernel starts 149 and 463 ms after its launch."""
    found, compute, host = asked(name)
    assert any("launched before the recording" in note for note in found.loaded.coverage.notes)
    assert found.doubts.step_before_pct > 40
    assert 40 < compute < 55
    assert host < 1
