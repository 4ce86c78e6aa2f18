"""The traces that ship with the project: each gives an answer, and the right one."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu_sample import CLUSTER, NODES, main, simulated
from experiments.baseline import Settings, baseline
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from topologies import Cluster, changed, load_cluster
from traces.load import load

GPU = SAMPLES / "gpu-dp2-tp4"
TRUTH = json.loads(GPU.with_name(f"{GPU.name}.truth.json").read_text())


@pytest.mark.parametrize("step", TRUTH["makespan_s"])
def test_the_gpu_sample_reads_as_what_it_was_written_from(step: str) -> None:
    truth = TRUTH["makespan_s"][step]
    found = baseline(GPU, TRUTH["cluster"], Settings(step=step, nodes=TRUTH["nodes"]))
    assert max(found.loaded.measured_end.values()) == pytest.approx(truth, rel=1e-6)
    alone = replace(found.recorded, workload=replace(found.recorded.workload, repeats=None))
    assert alone.run().makespan == pytest.approx(truth, rel=1e-3)
    coverage = found.loaded.coverage
    assert coverage.launches_paired == coverage.kernels
    assert coverage.collectives_matched == coverage.collectives == 24 + 24 + 6 * 4
    assert (coverage.bytes_known, coverage.starts_explained) == (1.0, 1.0)
    assert "inferred" not in coverage.starts
    assert (coverage.notes, dict(coverage.clock_offset)) == ((), {})


def test_the_gpu_sample_is_what_the_readme_says() -> None:
    found = load(GPU)
    assert (found.coverage.step, found.coverage.steps) == ("3", (1, 2, 3))
    assert found.accelerator == f"NVIDIA {load_cluster(CLUSTER).accelerator.name}"
    groups = {(group.label, group.ranks) for group in found.workload.groups}
    tensor = {("tp", (0, 1, 2, 3)), ("tp", (4, 5, 6, 7))}
    assert groups == tensor | {("dp", (rank, rank + 4)) for rank in range(4)}
    sizes = {float(size) for size in found.workload.calls.size}
    assert sizes == {20 * 2**20, 37.5 * 2**20}
    assert 15e-3 < found.measured_step < 40e-3
    assert sum(file.stat().st_size for file in GPU.iterdir()) < 1_000_000


def makespan(found: Scenario, cluster: Cluster) -> float:
    return Scenario(found.workload, cluster, nodes=NODES).run().makespan


@pytest.mark.parametrize("resource", ["scale_up.bandwidth", "scale_out.bandwidth"])
def test_a_what_if_on_the_gpu_sample_answers_as_on_its_workload(resource: str) -> None:
    cluster = load_cluster(CLUSTER)
    other = changed(cluster, resource, 2)
    written = Scenario(simulated()[-1].workload, cluster, nodes=NODES)
    read = Scenario(load(GPU, "3").workload, cluster, nodes=NODES)
    truth, found = (makespan(one, cluster) - makespan(one, other) for one in (written, read))
    assert truth > 1e-4
    assert found == pytest.approx(truth, rel=1e-3)


def test_the_gpu_sample_is_made_again_alike(tmp_path: Path) -> None:
    assert main([str(tmp_path / GPU.name)]) == 0
    again = {file.name: gzip.decompress(file.read_bytes()) for file in tmp_path.glob("*/*")}
    assert again == {file.name: gzip.decompress(file.read_bytes()) for file in GPU.iterdir()}
    assert json.loads((tmp_path / f"{GPU.name}.truth.json").read_text()) == TRUTH


def test_the_maker_of_the_gpu_sample_needs_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "OUT_DIR" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["5", "6", "7", "8"])
def test_the_recorded_sample_replays_as_it_was_recorded(step: str) -> None:
    """Ranks that share cores end an all-reduce up to 5 ms apart: the error is not to be 0.

    Steps alone are compared: these differ by a fifth, and each would follow itself otherwise.
    """
    settings = Settings(collective_cost="trace", step=step)
    found = baseline(SAMPLES / "gloo-ddp-4", CLUSTER, settings)
    coverage = found.loaded.coverage
    assert coverage.ranks == (0, 1, 2, 3)
    assert coverage.collectives_matched == coverage.collectives == 4
    alone = replace(found.recorded, workload=replace(found.recorded.workload, repeats=None))
    measured = max(found.loaded.measured_end.values())
    assert alone.run().makespan == pytest.approx(measured, rel=0.05)


def test_the_recorded_sample_follows_itself_as_its_steps_did() -> None:
    found = baseline(SAMPLES / "gloo-ddp-4", CLUSTER, Settings(collective_cost="trace"))
    assert len(found.loaded.coverage.typical_of) == 4
    assert abs(found.error) < 0.02
