"""Metrics of a step: each from its definition, one row at least, and why one is missing."""

import math
from dataclasses import replace

import numpy as np
import pytest

import twofold as tf
from experiments.questions.metrics import DEFINED, EXCHANGED, NO_CALL, _report, ports
from helpers.places import SAMPLES
from simulator.analysis.phases import Phase
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import catalog, load_cluster
from traces.card.card import WorkloadCard
from traces.card.package import Package
from traces.core.loaded import Counters
from traces.load import load

GPU = SAMPLES / "gpu-dp2-tp4"
ARCH = {"num_params": 10**9, "num_layers": 8, "num_heads": 16, "head_dim": 64}


@pytest.fixture(scope="module")
def base():
    return tf.replay(GPU, "dgx-a100", nodes=2).base


def card(phase="training", plan=None, **data):
    model = {"phase": phase, "precision": "bf16", "model_arch": ARCH}
    return WorkloadCard.model_validate(
        {
            "version": 1,
            "workload": {"model": model, "data": data},
            "Model-executor": {"model_plan_parallelization": plan or {"dp_shard": 2, "tp": 4}},
        }
    )


def values(loaded, base=None, described=None):
    package = None if described is None else Package(described, GPU / "card.yaml", GPU)
    report = _report(loaded, base, package, [], 10)
    return report, {(row.metric, row.of): row for row in report.metrics}


def test_every_metric_has_a_row_in_order_with_its_unit_and_published_name(base):
    for simulated in (None, base):
        report, rows = values(base.loaded, simulated)
        order = [row.metric for row in report.metrics]
        assert list(dict.fromkeys(order)) == list(DEFINED)
        assert len(rows) == len(report.metrics)
        for row in report.metrics:
            defined = DEFINED[row.metric]
            assert (row.unit, row.published) == (defined.unit, defined.published)
            assert not row.note or row.unknown
            if row.unknown and defined.needs and row.note != NO_CALL:
                assert row.note == f"needs {defined.needs}"
        assert (rows["step_time", ""].simulated is None) == (simulated is None)
        assert (report.traffic["simulated"] is None) == (simulated is None)


def test_bytes_and_numbers_of_calls_add_up_from_groups_to_kinds_to_the_total(base):
    _, rows = values(base.loaded, base)
    workload = base.loaded.workload
    views = [workload.call_view(index) for index in range(len(workload.calls))]
    for run in ("measured", "simulated"):
        sizes = {
            of: getattr(row, run) for (name, of), row in rows.items() if name == "collective_size"
        }
        calls = {of: getattr(row, run) for (name, of), row in rows.items() if name == "calls"}
        kinds = {view.kind for view in views}
        by_group = [of for of in sizes if " " in of]
        assert {of.split()[0] for of in by_group} == kinds
        for kind in kinds:
            of_kind = [view for view in views if view.kind == kind]
            assert calls[kind] == len(of_kind)
            assert calls[kind] == sum(calls[of] for of in by_group if of.split()[0] == kind)
            joined = sum(view.size * len(view.group.ranks) for view in of_kind)
            assert sizes[kind] == pytest.approx(joined / 8)
            groups = [sizes[of] for of in by_group if of.split()[0] == kind]
            assert sizes[kind] == pytest.approx(sum(groups))
        assert sizes["total"] == pytest.approx(sum(sizes[kind] for kind in kinds))
    for kind in set(EXCHANGED) - kinds:
        assert rows["collective_size", kind].measured == 0.0
        assert rows["bandwidth_utilisation", kind].note == NO_CALL


def test_calls_of_unknown_size_have_no_bytes_and_those_beside_them_count(base):
    workload = base.loaded.workload
    sizes = workload.calls.size.copy()
    kind = workload.call_view(0).kind
    of_kind = np.array([workload.call_view(i).kind == kind for i in range(len(sizes))])
    group = workload.calls.group[0]
    for unknown, some in ((of_kind & (workload.calls.group == group), True), (of_kind, False)):
        lacking = workload.with_calls(size=np.where(unknown, np.nan, sizes))
        _, rows = values(replace(base.loaded, workload=lacking))
        others = [row.measured for (name, of), row in rows.items()
                  if name == "collective_size" and of.startswith(f"{kind} ")]  # fmt: skip
        is_known = some and any(value is not None for value in others)
        assert (rows["collective_size", kind].measured is not None) == is_known
        assert rows["calls", kind].measured == of_kind.sum()
    none = workload.with_calls(size=np.full(len(sizes), np.nan))
    _, rows = values(replace(base.loaded, workload=none))
    assert rows["collective_size", "total"].measured is None


def test_a_training_step_consumes_its_global_batch(base):
    step = base.loaded.measured_step
    for scope, plan, batch in (
        ("global", None, 64), ("local", None, 2 * 64), (None, None, 64), ("local", {"tp": 8}, None)
    ):  # fmt: skip
        described = card(plan=plan, batch_size=64, seq_len=128, batch_size_scope=scope)
        _, rows = values(base.loaded, base, described)
        row = rows["tokens_per_second", ""]
        if batch is None:
            assert (row.measured, row.simulated) == (None, None)
            continue
        assert row.measured == pytest.approx(batch * 128 / step)
        assert row.simulated == pytest.approx(batch * 128 / base.timeline.makespan)
        # 6 FLOPs for each parameter and token, and those of attention, over what eight can do.
        flops = (6 * 1e9 + 12 * 8 * 16 * 64 * 128) * batch * 128
        mfu = flops / (8 * 312e12 * base.timeline.makespan)
        assert rows["mfu", ""].simulated == pytest.approx(mfu)
    assert (
        values(base.loaded, base, card(batch_size=64))[1]["tokens_per_second", ""].measured is None
    )
    _, alone = values(base.loaded, None, card(batch_size=64, seq_len=128))
    assert alone["mfu", ""].note == "no cluster gives the peak"
    every = replace(base.loaded, coverage=replace(base.loaded.coverage, step="all", steps=(1, 2)))
    _, rows = values(every, base, card(batch_size=64, seq_len=128))
    assert rows["tokens_per_second", ""].measured == pytest.approx(2 * 64 * 128 / step)


def test_a_step_without_time_has_no_use_of_the_accelerators(base):
    described = card(batch_size=8, seq_len=512)
    alone = replace(base.loaded.workload, repeats=None)
    for times, is_known in ((1.0, True), (0.0, False)):
        measured = (times * alone.measured_start, times * alone.measured_end)
        shrunk = replace(alone, measured_start=measured[0], measured_end=measured[1])
        _, rows = values(replace(base.loaded, workload=shrunk), base, described)
        assert (rows["mfu", ""].measured is not None) == is_known


def test_in_serving_a_decode_makes_a_token_of_each_request(base):
    workload = base.loaded.workload
    lane = workload.lanes[workload.lane[0]]
    begin, end = (
        float(each) for each in (workload.measured_start.min(), workload.measured_end.max())
    )
    at = [begin + (end - begin) * share for share in (0.0, 0.5, 0.75, 1.0)]
    ranges = tuple(
        Phase(name, int(workload.rank[0]), lane, at[n], at[n + 1])
        for n, name in enumerate(("prefill", "decode", "decode"))
    )
    served = replace(base.loaded, phases=ranges)
    _, rows = values(served, None, card("inference", batch_size=4, output_len=3))
    ttft, tpot = rows["ttft", ""].measured, rows["tpot", ""].measured
    assert (ttft, tpot) == pytest.approx(((end - begin) / 2, (end - begin) / 4))
    assert rows["tokens_per_second", ""].measured == pytest.approx(4 / tpot)
    assert rows["requests_per_second", ""].measured == pytest.approx(4 / (ttft + 2 * tpot))
    _, rows = values(served, None, card("inference", batch_size=4))
    assert rows["requests_per_second", ""].measured is None
    decodes = replace(base.loaded, phases=ranges[1:])
    _, rows = values(decodes, None, card("inference", batch_size=4))
    assert rows["ttft", ""].note == "no range of the trace is marked prefill"
    _, rows = values(base.loaded, None, card("serving", batch_size=4))
    assert rows["tpot", ""].note == "no range of the trace is marked decode"


def test_kernels_are_bound_by_what_takes_them_longer(base):
    """312 TFLOP/s and 2.039 TB/s: 153 FLOPs in the time of a byte."""
    workload = base.loaded.workload
    kernels = np.flatnonzero(workload.what == What.COMPUTE)
    flops, traffic = np.full(len(workload), np.nan), np.full(len(workload), np.nan)
    chip = base.scenario.cluster.accelerator
    ridge = chip.peak["bf16"] / chip.memory_bandwidth
    flops[kernels[:3]], traffic[kernels[:3]] = [1.01e9 * ridge, 0.99e9 * ridge, 5e9 * ridge], 1e9
    counted = replace(base.loaded, workload=replace(workload, flops=flops, traffic=traffic))
    lasting = (workload.measured_end - workload.measured_start)[kernels[:3]]
    _, rows = values(counted, base)
    share = (lasting[0] + lasting[2]) / lasting.sum()
    assert rows["compute_bound", ""].measured == pytest.approx(share)
    assert rows["memory_bound", ""].measured == pytest.approx(1 - share)
    assert rows["compute_bound", ""].note == ""


def test_what_a_profiler_counted_is_taken_and_what_it_did_not_is_unknown(base):
    counted = Counters(0.5, 0.25, math.nan, 8e9, 2.0, 0.1, math.nan, 1.5)
    _, rows = values(replace(base.loaded, counters=counted))
    expected = {
        ("sm_coverage", ""): 0.5, ("compute_bound", "by SM coverage"): 0.25,
        ("memory_bandwidth", ""): 4e9, ("nvlink_use", "sent"): 0.1,
        ("nvlink_use", "received"): None, ("tokens_per_expert_rank", ""): 1.5,
    }  # fmt: skip
    assert {key: rows[key].measured for key in expected} == expected
    assert ("memory_bound", "by SM coverage") not in rows
    still = replace(base.loaded, counters=Counters(copied=8e9, copying=0.0))
    assert values(still)[1]["memory_bandwidth", ""].measured is None


def test_the_utility_of_the_scale_up_bandwidth_is_that_of_utility(base):
    _, rows = values(base.loaded, base)
    points = tf.utility(GPU, "dgx-a100", nodes=2, resources="scale_up.bandwidth").points
    share = rows["scale_up_bandwidth_utility", ""].simulated
    assert 100 * share == pytest.approx(points[0].utility_pct)
    assert rows["scale_up_bandwidth_utility", ""].measured is None


def test_a_step_that_is_not_simulated_takes_no_settings_of_a_simulation():
    with pytest.raises(WhatIfError, match="nodes cannot be used: nothing is simulated"):
        tf.metrics(GPU, nodes=2)
    with pytest.raises(WhatIfError, match="0 windows: write 1 or more"):
        tf.metrics(GPU, "dgx-a100", windows=0)
    report = tf.metrics(GPU, "dgx-a100", windows=1, nodes=2)
    for row in report.traffic["measured"]:
        assert (row.start, row.end) == pytest.approx((0.0, report.loaded.measured_step))
    assert report.notes == ()


@pytest.mark.parametrize("name", catalog())
def test_ports_are_those_of_the_clusters_file(name):
    cluster = load_cluster(name)
    nodes = 2 if cluster.scale_out is not None else 1
    ranks = nodes * cluster.ranks_per_node
    made = ports(cluster, ranks, nodes)
    assert [made.node[rank] for rank in range(ranks)] == [
        rank // cluster.ranks_per_node for rank in range(ranks)
    ]
    domains = {}
    for rank in range(ranks):
        domains.setdefault(made.domain[rank], []).append(rank)
    size = min(cluster.scale_up.size, ranks)
    assert {len(members) for members in domains.values()} == {size}
    assert made.scale_up == cluster.scale_up.bandwidth
    assert made.adds == cluster.scale_up.in_network_reduction
    if cluster.scale_out is not None:
        fabric = cluster.scale_out
        used = {nic for rank in range(cluster.ranks_per_node) for nic in made.nics[rank]}
        assert len(used) <= fabric.nics_per_node
        assert made.nic_bandwidth >= fabric.bandwidth
        assert made.nic_bandwidth * max(len(used), 1) <= fabric.bandwidth * fabric.nics_per_node * 2
    is_joined = cluster.ranks_per_node > cluster.scale_up.size and cluster.pcie is not None
    assert made.host == (cluster.pcie.bandwidth if is_joined else 0.0)


def test_a_trace_of_part_of_a_job_says_that_calls_include_waiting(base):
    coverage = replace(base.loaded.coverage, ranks=(0, 1))
    report, _ = values(replace(base.loaded, coverage=coverage))
    assert "ranks that were not recorded" in report.notes[0]
    assert values(base.loaded)[0].notes == ()
    plain = load(GPU)
    unmeasured = replace(plain.workload, measured_start=np.full(len(plain.workload), np.nan))
    report, rows = values(replace(plain, workload=unmeasured))
    assert report.notes == ("not all ops were measured: the measured metrics are not given",)
    assert rows["step_time", ""].measured is None
