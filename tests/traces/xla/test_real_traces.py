"""Real profiles of XLA, where they are at hand: each is replayed as it was measured."""

import numpy as np
import pytest

from experiments.baseline import with_costs
from experiments.scenario.scenario import Scenario
from helpers.places import SHARED
from simulator.support.errors import TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.core.loaded import Loaded
from traces.xla.nsys_jax import load_bundles
from traces.xla.xplane import load_trace_json, load_xplane

TRACES = SHARED / "traces"
TPU = TRACES / "xla" / "tpu_v6e_4chip.xplane.pb.gz"
STATS = TRACES / "xla" / "tpu_v5_8core_training_hlo_stats.json.gz"
NSYS = TRACES / "nsys-jax"

pytestmark = pytest.mark.skipif(not NSYS.is_dir(), reason="the real traces are not at hand")


def error(found: Loaded, cluster: str, mode: str) -> float:
    scenario = Scenario(found.workload, load_cluster(cluster), "flow")
    simulated = with_costs(scenario, mode).run().makespan
    return simulated / found.measured_step - 1


def calls(found: Loaded, rank: int) -> list[tuple[str, float, tuple[int, ...]]]:
    load = found.workload
    own = load.call[(load.rank == rank) & (load.call >= 0)]
    views = [load.call_view(int(index)) for index in own]
    return [(view.kind, view.size, view.group.ranks) for view in views]


@pytest.mark.parametrize("mode", ["trace", "model"])
@pytest.mark.parametrize("step", ["median", "1", pytest.param("50", marks=pytest.mark.slow), "100"])
def test_the_tpus_replay_as_measured(step: str, mode: str) -> None:
    found = load_xplane(TPU, step)
    assert abs(error(found, "tpu-v6e", mode)) < 0.001
    assert found.coverage.starts_explained > 0.99
    assert found.coverage.launches_paired == found.coverage.kernels


def test_the_tpus_reduce_with_the_chips_of_the_other_host() -> None:
    """Chips 4 to 7 of 8 were recorded, ``replica_groups=[4,2]<=[2,4]T(1,0)``."""
    found = load_xplane(TPU, "median")
    assert found.coverage.step == "all"
    assert found.coverage.ranks == (4, 5, 6, 7)
    assert found.coverage.ranks_in_job == 8
    for rank in found.coverage.ranks:
        reduced = [call for call in calls(found, rank) if call[0] == "all_reduce"]
        assert reduced == [("all_reduce", 5 * 1024 * 1024 * 256 * 4, (rank - 4, rank))] * 3
    transfer = found.workload.calls.transfer[found.workload.calls.size > 0]
    assert transfer == pytest.approx([0.1217] * 12, rel=1e-3)


def test_a_run_of_the_tpus_is_bound_by_copies() -> None:
    """Its three copies from the host's memory take 185 ms each, whatever the clock says."""
    load = load_xplane(TPU, "50").workload
    copies = load.what == What.COPY
    assert np.count_nonzero(copies) == 4 * 6
    assert load.duration[copies].min() == pytest.approx(0.182, rel=0.01)
    assert np.array_equal(load.over_bus, copies)
    assert load_xplane(TPU, "50").measured_step == pytest.approx(0.785, rel=0.02)


@pytest.fixture(scope="module")
def fsdp() -> Loaded:
    return load_bundles(NSYS, "median")


def test_the_gpus_collectives_are_those_of_the_program(fsdp: Loaded) -> None:
    coverage = fsdp.coverage
    assert (coverage.ranks, coverage.steps) == ((0, 1, 2, 3), (1, 2, 3, 4, 5))
    assert coverage.collectives == coverage.collectives_matched == coverage.sizes_known == 23
    assert coverage.starts_explained > 0.99
    first = calls(fsdp, 0)
    assert all(group == (0, 1, 2, 3) for _, _, group in first)
    kinds = [kind for kind, _, _ in first]
    assert [kinds.count(k) for k in ("all_gather", "all_reduce", "reduce_scatter")] == [10, 9, 4]
    assert max(size for _, size, _ in first) == pytest.approx(76.69 * 2**20, rel=1e-4)
    assert set(coverage.clock_offset) == {0, 1, 2, 3}


@pytest.mark.parametrize("mode", ["trace", "model"])
def test_the_gpus_replay_as_measured(fsdp: Loaded, mode: str) -> None:
    assert fsdp.measured_step == pytest.approx(0.1275, rel=0.01)
    assert abs(error(fsdp, "dgx-a100", mode)) < 0.03


def test_all_of_a_bundle_holds_what_came_before_the_first_step() -> None:
    found = load_bundles(NSYS / "pax_fsdp4_4proc_proc2.zip", "all")
    assert (found.coverage.ranks, found.coverage.ranks_in_job) == ((2,), 4)
    assert len(calls(found, 2)) == 120
    assert abs(error(found, "dgx-a100", "trace")) < 0.001


def test_statistics_are_refused() -> None:
    with pytest.raises(TraceError, match="a table of HLO statistics, not a trace"):
        load_trace_json(STATS, "median")
