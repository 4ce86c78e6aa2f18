"""The test of a what-if: traces of known programs, calibrated, and asked about another cluster.

A program runs on a cluster whose library does better or worse than its file says, by what nobody
is told; each call jitters, and the ranks' clocks are off by milliseconds. What a profiler would
have recorded is read, calibrated and replayed on another cluster, where the same library does as
well against that cluster's file; the program itself, run there, is the truth.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baseline import Settings, baseline
from experiments.costing.calibration import with_calibration
from experiments.scenario.scenario import Scenario
from helpers.programs import Program, build, programs, skew_clocks, with_noise
from topologies import Cluster, load_cluster
from topologies.cluster.schema import Calibrated
from traces.kineto.write import write_kineto

HERE = "dgx-a100"
THERE = ("hgx-h100", "perlmutter", "dgx-a100")
NODES = 2
_multiple = st.floats(0.75, 1.25)
libraries = st.fixed_dictionaries(
    dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive"),
        st.builds(
            lambda overhead, inside, across: Calibrated(
                overhead=overhead, bandwidth={"scale_up": inside, "scale_out": across}
            ),
            _multiple,
            _multiple,
            _multiple,
        ),
    )
)
"""How much better or worse than its file a cluster's library does, by kind."""


def truth(program: Program, cluster: Cluster, library: dict[str, Calibrated]) -> Scenario:
    return Scenario(build(program), with_calibration(cluster, library), nodes=NODES)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(programs, libraries, st.sampled_from(THERE), st.floats(0, 0.03))
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_trace_calibrated_here_tells_the_step_there(
    program: Program, library: dict[str, Calibrated], there: str, noise: float
) -> None:
    here, other = load_cluster(HERE), load_cluster(there)
    real = truth(program, here, library)
    noisy = replace(real, workload=with_noise(real.workload, program.seed, noise))
    with TemporaryDirectory() as folder:
        timeline = replace(noisy.run(), workload=real.workload)
        write_kineto([timeline], folder)
        skew_clocks(Path(folder), program.seed)
        base = baseline(folder, here, Settings(nodes=NODES, collective_cost="calibrated"))
    moved = with_calibration(other, base.scenario.cluster.calibration)
    predicted = replace(base.scenario, cluster=moved).run().makespan
    assert predicted == pytest.approx(truth(program, other, library).run().makespan, rel=0.02)
