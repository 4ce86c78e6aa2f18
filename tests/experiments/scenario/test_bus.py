"""Copies between host and device move over PCIe: doubling it halves them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.evaluate.design_points import DesignPoints
from experiments.scenario.change import Change, by_values
from experiments.scenario.language import parse_change
from experiments.scenario.resources import improve, not_used
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.workload import What, Workload
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")
PINNED = ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)", "CopyDeviceToHost")
OTHERS = ("Memcpy DtoD (Device -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)")


def copied(name: str, copy: float, *, kernel: float = 1e-3, measured: bool = True) -> Workload:
    """A copy, and a kernel after it."""
    builder = WorkloadBuilder(job_ranks=1)
    end = 0.0
    previous = None
    for what, label, duration in ((What.COPY, name, copy), (What.COMPUTE, "gemm", kernel)):
        times = {"measured": (end, end + duration)} if measured else {}
        op = builder.op(what, rank=0, lane="stream 7", name=label, duration=duration, **times)
        if previous is not None:
            builder.edge(previous, op)
        previous, end = op, end + duration
    return builder.build()


@pytest.mark.parametrize("name", PINNED)
@pytest.mark.parametrize("engine", ["flow", "analytic", "simpy"])
def test_a_pinned_copy_takes_half_the_time(name, engine):
    scenario = Scenario(copied(name, 8e-3), CLUSTER, engine)
    step = improve(scenario, "pcie.bandwidth", 2.0).run().makespan
    assert step == pytest.approx(5e-3)
    assert not_used(scenario.run(), scenario, "pcie.bandwidth") == ""


@pytest.mark.parametrize("name", OTHERS)
def test_other_copies_stay_as_long(name):
    scenario = Scenario(copied(name, 8e-3), CLUSTER)
    assert improve(scenario, "pcie.bandwidth", 2.0).run().makespan == pytest.approx(9e-3)


def test_a_copy_of_a_few_bytes_is_all_set_up_and_one_without_a_recorded_time_all_bytes():
    short = Scenario(copied(PINNED[0], 9e-6), CLUSTER)
    assert improve(short, "pcie.bandwidth", 4.0).run().makespan == pytest.approx(1.009e-3)
    unmeasured = Scenario(copied(PINNED[0], 8e-3, measured=False), CLUSTER)
    assert improve(unmeasured, "pcie.bandwidth", 4.0).run().makespan == pytest.approx(3e-3)


def test_without_a_bus_in_the_cluster_file_the_answer_says_what_to_give():
    cluster = CLUSTER.model_copy(update={"pcie": None})
    scenario = Scenario(copied(PINNED[0], 8e-3), cluster)
    assert "has no pcie.bandwidth" in not_used(scenario.run(), scenario, "pcie.bandwidth")


texts = st.sampled_from(
    ["pcie.bandwidth x2", "pcie.bandwidth x0.5", "copy x3", "copy x0.5", "compute x0.5"]
)


@given(name=st.sampled_from((*PINNED, *OTHERS)), changes=st.lists(texts, max_size=4))
def test_all_at_once_is_one_after_the_other_in_any_order(name, changes):
    scenario = Scenario(copied(name, 8e-3), CLUSTER, "analytic")
    together = Change()
    for text in changes:
        together |= parse_change(text)
    applied = together.apply(scenario).scenario.run().makespan
    assert DesignPoints(scenario).steps([together])[0] == pytest.approx(applied, rel=1e-12)


def test_on_another_cluster_copies_are_as_recorded_whatever_its_bus():
    scenario = Scenario(copied(PINNED[0], 8e-3), CLUSTER)
    faster = CLUSTER.model_copy(
        update={"pcie": CLUSTER.pcie.model_copy(update={"bandwidth": 1e12})}
    )
    assert by_values(scenario, replace(scenario, cluster=faster)) is None
    assert np.isclose(replace(scenario, cluster=faster).run().makespan, 9e-3)
