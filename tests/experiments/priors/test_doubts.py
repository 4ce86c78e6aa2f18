"""What answers say that they do not know: pinned shares, errors of calls, other hardware."""

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import twofold as tf
from experiments.baseline import Settings, baseline, replayed
from experiments.output.terminal import Amount, print_document
from experiments.points.utility import UtilityReport, utilities
from experiments.priors.doubts import Doubts, communication_error, hardware_warning, touched
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES, SHARED
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import UNEXPLAINED_HOST, What
from topologies import load_cluster
from topologies.cluster.node import AcceleratorTable
from traces.core.loaded import Coverage, Loaded

CLUSTER = load_cluster("dgx-a100")
GPU, CPU = str(SAMPLES / "gpu-dp2-tp4"), str(SAMPLES / "gloo-ddp-4")
SIZE = 2.0**26


def doubled(base, resources):
    """Rows of what twice of each resource buys, in the order of the resources."""
    rows = {row.resource: row for row in utilities(base, 2.0, resources)}
    return [rows[name] for name in resources]


def builder_of(ranks=2):
    return WorkloadBuilder(job_ranks=ranks)


def add_call(builder, transfer, *, members=(0, 1), start=0.0, after=(), **sort):
    """A call of two ranks that start together, measured to take ``transfer`` (s)."""
    number = len(builder._calls)
    kind, size = sort.get("kind", "all_reduce"), sort.get("size", SIZE)
    row = CallRow(kind, builder.group((0, 1), "dp"), number, size, transfer=transfer)
    call, made = builder.call(row), []
    for rank in members:
        measured = start, start + transfer
        made.append(
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane="stream 20",
                name="nccl",
                duration=0.0,
                call=call,
                measured=measured,
            )
        )
    for source, target in zip(after, made, strict=False):
        builder.edge(source, target)
    return made


def base_of(workload, cluster=CLUSTER, accelerator="", **settings):
    """A baseline of a step that was put together by hand."""
    coverage = Coverage(
        step="1",
        steps=(1,),
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        collectives=0,
        collectives_matched=0,
        sizes_known=0,
    )
    ends = np.nan_to_num(workload.measured_end, nan=1.0)
    loaded = Loaded("by hand", workload, coverage, float(ends.max()), {}, {}, accelerator)
    return replayed(lambda _: loaded, cluster, Settings(**settings))


def asked(base, *resources):
    return {row.resource: row for row in doubled(base, resources)}


def printed(base, *resources, width=120):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    rows = doubled(base, resources)
    document = UtilityReport(base, tuple(rows), 2.0).document()
    print_document(console, document, Amount.VERBOSE)
    return console.file.getvalue()


# --- pinned share


def pinned_chain(silence, work=1.0):
    builder = builder_of(1)
    ops = [
        builder.op(What.HOST, rank=0, lane="main", name=name, duration=seconds)
        for name, seconds in (("aten::mm", work), (UNEXPLAINED_HOST, silence))
    ]
    builder.edge(*ops)
    return builder.build()


def test_the_pinned_share_is_in_the_answer_by_cause():
    answer = base_of(pinned_chain(3.0)).answer()
    assert answer["pinned_pct"] == pytest.approx(75)
    assert answer["pinned_by_cause_pct"] == {UNEXPLAINED_HOST: pytest.approx(75)}


def test_much_pinned_time_is_said_in_the_rows_it_touches():
    row = asked(base_of(pinned_chain(3.0)), "host")["host"]
    assert row.utility_pct == pytest.approx(12.5)
    assert row.warning == "may be more: 75 % of the step is unexplained (unexplained host)"
    assert "savings may be larger" in " ".join(printed(base_of(pinned_chain(3.0)), "host").split())


def test_little_pinned_time_is_said_in_the_head_only():
    base = base_of(pinned_chain(0.1))
    assert asked(base, "host")["host"].warning == ""
    text = printed(base, "host")
    assert "insensitive     9.1 % of the step: unexplained host 9.1 %" in text
    assert "savings may be larger" not in text


def test_silence_beside_the_critical_path_is_pinned_too():
    """However fast all gets, the silent thread takes its time; so savings end there."""
    builder = builder_of(1)
    builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=4.0)
    builder.op(What.HOST, rank=0, lane="main", name=UNEXPLAINED_HOST, duration=3.9)
    base = base_of(builder.build())
    assert dict(base.doubts.pinned) == {UNEXPLAINED_HOST: pytest.approx(97.5)}
    row = asked(base, "compute")["compute"]
    assert row.utility_pct == pytest.approx(2.5)
    assert row.warning.startswith("may be more: 98 % of the step is unexplained")


def test_copies_between_host_and_device_follow_the_bus():
    builder = builder_of(1)
    builder.op(What.COPY, rank=0, lane="s", name="Memcpy HtoD (Pinned -> Device)", duration=1.0)
    assert base_of(builder.build()).doubts.pinned_pct < 0.01


def test_copies_are_pinned_but_make_nothing_doubtful():
    builder = builder_of(1)
    ops = [
        builder.op(what, rank=0, lane="s", name="x", duration=1.0)
        for what in (What.COMPUTE, What.COPY)
    ]
    builder.edge(*ops)
    base = base_of(builder.build())
    assert dict(base.doubts.pinned) == {"copy": pytest.approx(50)}
    assert asked(base, "compute")["compute"].warning == ""


def test_calls_of_unknown_size_make_the_network_doubtful_and_not_the_ranks():
    builder = builder_of()
    work = [
        builder.op(What.COMPUTE, rank=rank, lane="s", name="gemm", duration=0.1) for rank in (0, 1)
    ]
    first = add_call(builder, 0.5, size=np.nan, after=work)
    add_call(builder, 0.01, after=first)
    rows = asked(base_of(builder.build()), "compute", "scale_up.bandwidth")
    assert "unknown calls" in rows["scale_up.bandwidth"].warning
    assert rows["compute"].warning == ""


# --- exposed communication that buys nothing


def beside(delay):
    """A call of known size, and a kernel behind a gap that lasts as long on rank 0."""
    builder = builder_of()
    heads = [
        builder.op(What.COMPUTE, rank=rank, lane="s", name="gemm", duration=1e-3) for rank in (0, 1)
    ]
    calls = add_call(builder, 1e-3, after=heads)
    last = builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=1e-3)
    builder.edge(calls[0], last)
    builder.edge(heads[0], last, lag=delay)
    return builder.build()


def test_exposed_communication_that_buys_nothing_is_said_and_not_printed_bare():
    base = base_of(beside(delay=5e-3).with_calls(size=np.array([8 * SIZE])))
    rows = asked(base, "scale_up.bandwidth", "scale_up.latency", "compute")
    for name in ("scale_up.bandwidth", "scale_up.latency"):
        assert rows[name].utility_pct == pytest.approx(0.0, abs=1e-6)
        assert "hidden: " in rows[name].warning
        assert "exposed communication on scale_up" in rows[name].warning
    assert "hidden" not in rows["compute"].warning
    document = UtilityReport(base, tuple(doubled(base, ["scale_up.bandwidth"])), 2.0).document()
    assert any("exposed communication on scale_up" in doubt.cause for doubt in document.warning)


def test_a_little_exposed_communication_is_nothing_to_wonder_at():
    rows = asked(base_of(beside(delay=5e-3)), "scale_up.bandwidth")
    assert rows["scale_up.bandwidth"].utility_pct == pytest.approx(0.0, abs=1e-6)
    assert "hidden" not in rows["scale_up.bandwidth"].warning


def test_exposed_communication_that_pays_is_not_doubted():
    base = base_of(beside(delay=0.0).with_calls(size=np.array([SIZE * 8])))
    rows = asked(base, "scale_up.bandwidth")
    assert rows["scale_up.bandwidth"].utility_pct > 10
    assert rows["scale_up.bandwidth"].warning == ""


# --- modelled against measured transfers


def two_streams(computes, exchanges):
    """Kernels of 10 ms on one stream, and calls of unknown size of 9 ms on another, end to end."""
    builder = builder_of()
    for rank in (0, 1):
        last = None
        for _ in range(computes):
            op = builder.op(What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=10e-3)
            if last is not None:
                builder.edge(last, op)
            last = op
    after = ()
    for number in range(exchanges):
        after = add_call(builder, 9e-3, start=9e-3 * number, after=after, size=np.nan)
    return base_of(builder.build())


def test_busy_devices_that_buy_little_say_what_is_as_long_beside_them():
    """100 ms of kernels, 99 ms of exchanges: one alone saves 1 %, both half."""
    row = asked(two_streams(10, 11), "compute")["compute"]
    assert row.utility_pct == pytest.approx(1.0)
    assert row.warning == (
        "hidden: devices compute during 100 % of the step, but twice as fast devices save only "
        "1 %, because communication takes 99 % of it at the same time "
        "(both twice as fast save 50 %)"
    )
    assert row.warning.removeprefix("hidden: ") in " ".join(
        printed(two_streams(10, 11), "compute").split()
    )


def test_busy_devices_beside_a_recorded_delay_do_not_blame_what_saves_nothing_either():
    """100 ms of kernels beside a kernel of 1 ms that begins 98 ms late, for no recorded reason."""
    builder = builder_of(1)
    builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=100e-3)
    ops = [
        builder.op(What.COMPUTE, rank=0, lane="stream 8", name="gemm", duration=1e-3)
        for _ in range(2)
    ]
    builder.edge(*ops, lag=98e-3)
    row = asked(base_of(builder.build()), "compute")["compute"]
    assert row.utility_pct == pytest.approx(1.0)
    assert row.warning.endswith("save only 1 %, because a recorded delay takes as long")


@pytest.mark.parametrize(("computes", "exchanges"), [(10, 5), (5, 11)])
def test_devices_that_are_idle_or_pay_are_not_doubted(computes, exchanges):
    row = asked(two_streams(computes, exchanges), "compute")["compute"]
    assert "beside them" not in row.warning


def modelled(size=SIZE, kind="all_reduce"):
    """What the model says of one call (s)."""
    builder = builder_of()
    add_call(builder, 1.0, size=size, kind=kind)
    timeline = Scenario(builder.build(), CLUSTER).run()
    return float(timeline.call_end[0] - timeline.call_start[0])


def test_the_error_of_calls_is_the_median_per_kind_and_over_all():
    builder, cost = builder_of(), modelled()
    before = ()
    for number, ratio in enumerate((0.5, 1.0, 2.0, 4.0, 4.0)):
        before = add_call(builder, cost / ratio, start=float(number), after=before)
    gather = modelled(kind="all_gather")
    add_call(builder, gather / 3.0, kind="all_gather", start=9.0, after=before)
    found = base_of(builder.build()).communication_error
    assert found["calls"] == 6
    assert found["not_compared"] == 0
    assert found["median_pct"] == pytest.approx(150, rel=1e-3)
    kinds = {one.kind: (one.calls, one.median_pct) for one in found["kinds"]}
    assert kinds["all_reduce"] == (5, pytest.approx(100, rel=1e-3))
    assert kinds["all_gather"] == (1, pytest.approx(200, rel=1e-3))
    assert list(kinds) == ["all_reduce", "all_gather"]


def test_errors_of_both_signs_do_not_cancel_in_the_median_without_sign():
    builder, cost, before = builder_of(), modelled(), ()
    for number, ratio in enumerate((0.5, 1.5)):
        before = add_call(builder, cost / ratio, start=float(number), after=before)
    found = base_of(builder.build()).communication_error
    assert found["median_pct"] == pytest.approx(0, abs=0.2)
    assert found["median_absolute_pct"] == pytest.approx(50, rel=1e-2)


def test_calls_that_cannot_be_compared_are_counted():
    builder = builder_of()
    before = add_call(builder, modelled())
    before = add_call(builder, 1e-3, size=np.nan, start=1.0, after=before)
    add_call(builder, 1e-3, members=(0,), start=2.0, after=before)
    found = base_of(builder.build()).communication_error
    assert (found["calls"], found["not_compared"]) == (1, 2)
    assert found["median_pct"] == pytest.approx(0, abs=0.2)


def test_costs_from_the_trace_are_no_test_of_the_network():
    builder = builder_of()
    add_call(builder, 3 * modelled())
    base = base_of(builder.build(), collective_cost="trace")
    assert base.error == pytest.approx(0, abs=1e-6)
    assert base.communication_error["median_pct"] is None
    assert "no test of the network" in base.communication_error["note"]
    assert "collectives     set to the measured times: no test of the network" in printed(
        base, "scale_up.bandwidth"
    )


def test_what_was_not_measured_has_no_error():
    builder = builder_of()
    found = communication_error(Scenario(builder.build(), CLUSTER).run(), "model")
    assert (found["calls"], found["median_pct"], found["note"]) == (0, None, "no call was measured")


def test_a_what_if_does_not_change_the_error_of_the_replay():
    plain = tf.replay(GPU, "dgx-a100", nodes=1).base
    changed = tf.replay(GPU, "dgx-a100", nodes=1, what_ifs=("scale_up.bandwidth x0.5",)).base
    assert plain.communication_error == changed.communication_error
    assert plain.timeline.makespan < changed.timeline.makespan


# --- hardware


@pytest.mark.parametrize(
    ("recorded", "cluster"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-PG509-200", "A100-SXM4-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("AMD Instinct MI250X / MI250", "MI250X GCD"),
        ("AMD Radeon Graphics", "MI250X GCD"),
        ("gfx942:sramecc+:xnack-", "MI300X"),
        ("TPU v6 Lite", "TPU v6e"),
        ("TPU v5", "TPU v5p"),
        ("TPU v7x", "TPU7x"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
        ("NVIDIA A100-SXM4-80GB", "what we have"),
    ],
)
def test_the_same_model_is_the_same_whatever_its_memory(recorded, cluster):
    generation = {"MI250X GCD": "cdna2", "MI300X": "cdna3"}.get(cluster)
    chip = AcceleratorTable(name=cluster, generation=generation)
    assert hardware_warning(recorded, pinned_chain(1.0), chip, "here") == ""


@pytest.mark.parametrize(
    ("recorded", "cluster"),
    [
        ("NVIDIA A100-SXM4-80GB", "V100-SXM2"),
        ("NVIDIA H100 80GB HBM3", "H200-SXM-141GB"),
        ("NVIDIA A10", "A100-SXM4-40GB"),
        ("NVIDIA L4", "L40S"),
        ("NVIDIA B300 SXM6 AC", "B200-SXM-180GB"),
        ("NVIDIA B200", "GB200"),
        ("gfx90a:sramecc+:xnack-", "MI300X"),
        ("TPU v5 lite", "TPU v5p"),
        ("ARTEMIS", "H100-SXM5-80GB"),
        ("NVIDIA A100-SXM4-80GB", "cpu"),
        ("NVIDIA A100-SXM4-80GB", "TPU7x"),
        ("NVIDIA A100-SXM4-80GB", "RTX PRO 6000 Blackwell Server Edition"),
        ("NVIDIA GeForce RTX 4090", "RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_another_model_is_said(recorded, cluster):
    generation = {"MI300X": "cdna3"}.get(cluster)
    chip = AcceleratorTable(name=cluster, generation=generation)
    said = hardware_warning(recorded, pinned_chain(1.0), chip, "here")
    assert said.startswith(f"recorded on {recorded}, not on {cluster}: ")
    assert "only the network is that of here" in said


def measured_host():
    builder = builder_of(1)
    builder.op(What.HOST, rank=0, lane="main", name="mm", duration=1.0, measured=(0.0, 1.0))
    return builder.build()


def test_a_trace_without_a_device_is_not_of_a_cluster_with_accelerators():
    chip = AcceleratorTable(name="H100-SXM5-80GB")
    assert "on a host without" in hardware_warning("", measured_host(), chip, "here")
    for seen in ("", "NVIDIA H100 80GB HBM3"):  # a machine's devices, which no rank used
        assert hardware_warning(seen, measured_host(), AcceleratorTable(name="cpu"), "here") == ""
    generated = replace(measured_host(), measured_start=np.array([np.nan]))
    assert hardware_warning("", generated, chip, "here") == ""


def test_the_sample_of_a100_says_so_on_v100_and_not_on_a100():
    on_v100, on_a100 = (tf.replay(GPU, name).record() for name in ("dgx-v100", "dgx-a100"))
    assert on_v100["warnings"][0].startswith("recorded on NVIDIA A100-SXM4-80GB, not on V100-SXM2")
    assert on_a100["warnings"] == []
    assert on_v100["communication_error_pct"] > 20


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not at hand")
def test_megatron_on_v100_is_no_longer_right_without_a_word():
    base = tf.replay(SHARED / "traces" / "megatron-tp8-a100", "dgx-v100").base
    assert abs(base.error) < 1e-3
    assert base.communication_error["median_pct"] > 50
    assert base.warnings


# --- what the answers say


@pytest.mark.parametrize("trace", [GPU, pytest.param(CPU, marks=pytest.mark.slow)])
def test_every_answer_about_a_trace_says_it(trace):
    fast = {"engine": "analytic"}
    answers = (
        tf.replay(trace, CLUSTER, **fast),
        tf.utility(trace, CLUSTER, **fast),
        tf.sweep(trace, CLUSTER, "host", factors=[1, 2], **fast),
        tf.curve(trace, CLUSTER, "host"),
        tf.compare(trace, [CLUSTER, "hgx-h100"], **fast),
        tf.what_if(trace, CLUSTER, ["host x0.5"], **fast),
        tf.explain(trace, CLUSTER, **fast),
        tf.metrics(trace, CLUSTER, **fast),
    )
    for answer in answers:
        record = json.loads(answer.to_json())
        assert 0 <= record["pinned_pct"] <= 100
        assert sum(record["pinned_by_cause_pct"].values()) == pytest.approx(record["pinned_pct"])
        assert record["communication_error_pct"] == record["communication_error"]["median_pct"]
        shown = " ".join(re.sub("<[^>]*>", "", answer._repr_html_()).split())
        assert re.search(r"trust (good|fair|poor): replay .*\d+ % of the step depends on no", shown)


def test_changes_say_which_resources_they_touch():
    scenario = tf.replay(GPU, CLUSTER).base.scenario
    for text, found in (
        ("scale_up.bandwidth x2", ("scale_up.bandwidth",)),
        ("scale_up.latency = 1 us", ("scale_up.latency",)),
        ("compute x0.5", ("compute",)),
        ("rank 0 host x0.5 and scale_up.bandwidth x2", ("scale_up.bandwidth", "host")),
        ("all_reduce bytes x0.5", ()),
    ):
        after = parse_change(text).apply(scenario).scenario
        assert touched(scenario, after) == found, text


def test_doubts_of_nothing_are_none():
    timeline = SimpleNamespace(makespan=0.0)
    assert Doubts(None, timeline).hidden == {}


def test_a_profile_of_a_cpu_is_not_of_a_gpu_though_it_has_kernels():
    base = baseline(SAMPLES / "jax-cpu-4", "dgx-a100")
    (warning,) = base.warnings
    assert warning.startswith("recorded on CPU, not on A100-SXM4-80GB: ")
    recorded, cpu = base.loaded, AcceleratorTable(name="cpu")
    assert hardware_warning(recorded.accelerator, recorded.workload, cpu, "here") == ""


@pytest.mark.parametrize(
    ("kernel", "cluster", "warning"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz", "A100-SXM4-80GB", "need compute capability 9"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "A100-SXM4-80GB", "need compute capability 9"),
        ("nvjet_sm100_tst_mma_128x256x64", "H100-SXM5-80GB", "need compute capability 10"),
        ("ampere_sgemm_128x64_tn", "V100-SXM2-32GB", "need compute capability 8"),
        ("ampere_sgemm_128x64_tn", "MI300X", "need compute capability 8"),
        ("ampere_sgemm_128x64_tn", "H100-SXM5-80GB", ""),
        ("sm80_xmma_fprop_implicit_gemm", "A100-SXM4-80GB", ""),
        ("Cijk_Alik_Bljk_BBS_MT128x32_ISA942_IU1", "A100-SXM4-80GB", "are AMD's"),
        ("Cijk_Alik_Bljk_BBS_MT128x32_ISA942_IU1", "MI300X", ""),
        ("Cijk_Alik_Bljk_BBS_MT128x32_ISA942_IU1", "MI325X", ""),
        ("Cijk_Alik_Bljk_BBS_MT128x32_ISA90a_IU1", "MI300X", "built for gfx90a, not MI300X"),
        ("Cijk_Alik_Bljk_BBS_MT128x32_ISA90a_IU1", "MI250X GCD", ""),
        ("Cijk_Alik_Bljk_BBS_MT128x32_ISA000_IU1", "MI250X GCD", ""),
        ("prism32_kernel", "V100-SXM2-32GB", ""),
    ],
)
def test_names_of_kernels_say_what_they_cannot_have_run_on(kernel, cluster, warning):
    builder = builder_of(1)
    builder.op(What.COMPUTE, rank=0, lane="stream 7", name=kernel, duration=1.0, measured=(0, 1))
    text = hardware_warning("", builder.build(), AcceleratorTable(name=cluster), "here")
    assert warning in text
    assert bool(text) is bool(warning)
