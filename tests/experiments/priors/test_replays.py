"""Classes of programs, and what replays of them were off by."""

import math

import pytest

from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import steps
from experiments.intervals.interval import intervals
from experiments.priors.errors import (
    CLASSES,
    COPIES,
    NO_CALLS,
    NO_GAIN,
    REST,
    WHOLE,
    Errors,
    class_of,
    moved,
    own_error,
    replay_error,
)
from experiments.scenario.change import log_copied
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from helpers.places import ROOT, SAMPLES
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.topology import topology
from simulator.workload import What
from topologies import load_cluster

LIVE = ROOT / "traces" / "live"


@pytest.mark.parametrize(
    ("trace", "cluster", "name"),
    [
        (LIVE / "gpipe-2", LIVE / "gpipe-2.yaml", "messages"),
        (LIVE / "moe-4", LIVE / "moe-4.yaml", "all-to-all"),
        (LIVE / "zero3-2", LIVE / "net250.yaml", "shards"),
        (SAMPLES / "gpu-dp2-tp4", "dgx-a100", "all-reduce"),
    ],
)
def test_the_class_of_a_step_is_what_its_path_moves_on(trace, cluster, name):
    assert class_of(baseline(trace, cluster).timeline) == name


def test_a_step_without_calls_is_of_its_class_and_even_no_gain_is_uncertain():
    builder = WorkloadBuilder(job_ranks=1)
    builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=2e-3)
    alone = simulate(builder.build(), topology("alone", 1, []), lambda call, network: None)
    assert class_of(alone) == NO_CALLS
    assert replay_error(NO_CALLS) > own_error(NO_GAIN) > 0


@pytest.mark.parametrize("name", ["device-bound", "launch-bound"])
@pytest.mark.parametrize("change", ["compute x0.5", "compute x2", "host x0.5"])
def test_faster_kernels_are_no_more_uncertain_than_what_hosts_add(name, change):
    """The step without its host code, simulated, says what hosts add before and after."""
    base = baseline(LIVE / "gpu" / f"{name}.json.gz", LIVE / "gpu" / "gpu.yaml")
    (answer,) = steps(base, [(change, parse_change(change))])
    (interval,) = intervals(base, [answer])
    ratio = answer.step / base.timeline.makespan
    off, least = replay_error(NO_CALLS) * abs(moved(ratio)), own_error(NO_GAIN)
    added = []
    for scenario in (base.scenario, answer.scenario):
        alone = parse_change("host x0.000001").apply(scenario).scenario.run().makespan
        added.append(1 - alone / scenario.run().makespan)
    most = max(added) if "compute" in change else math.inf
    assert interval.prediction_pct == pytest.approx(
        100 * ratio * math.hypot(min(off, most), least), rel=2e-3
    )


OF_RANKS = (
    "compute x1.001",
    "*gemm* x1.001",
    "rank 1 *gemm* x1.001",
    "rank 1 copy drop",
    "fuse *gemm*",
    "launch x1.001",
    "overlap full",
    "calls drop",
    "accelerator H100-SXM5-80GB",
)
OF_CALLS = ("all_reduce bytes x1.001", "all_reduce time x1.001", "scale_up.bandwidth x1.001")


def test_a_change_of_what_ranks_do_is_uncertain_however_little_it_saves():
    base = baseline(SAMPLES / "gpu-dp2-tp4", "dgx-a100", settings=Settings(nodes=2))
    asked = [(text, parse_change(text)) for text in (*OF_RANKS, *OF_CALLS)]
    answered = steps(base, asked)
    widths = dict(zip((text for text, _ in asked), intervals(base, answered), strict=True))
    for (text, _), answer in zip(asked, answered, strict=True):
        least = 100 * own_error(NO_GAIN) * answer.step / base.timeline.makespan
        assert (widths[text].prediction_pct >= 0.999 * least) == (text in OF_RANKS), text


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("layers 4 -> 6", math.log(1.5)),
        ("layers 6 -> 4", math.log(1.5)),
        ("micro-batches 8 -> 12 and stages 4 -> 2", math.log(1.5) + math.log(2)),
        ("layers 4 -> 8 and scale_out.bandwidth x2", math.log(2)),
        ("layers 4 -> 8 and compute x0.5", 0.0),
        ("layers 4 -> 8 and pcie.bandwidth x2", 0.0),
        ("layers 4 -> 8 and scale_up.size x2", 0.0),
        ("hidden 4096 -> 8192", 0.0),
        ("layers 4 -> 8 and batch 4 -> 8", 0.0),
        ("scale_out.bandwidth x2", 0.0),
    ],
)
def test_copies_of_recorded_units_count_as_logarithms_beside_links_alone(text, copied):
    assert log_copied(parse_change(text)) == pytest.approx(copied)


def test_a_job_of_copies_is_off_by_a_share_of_how_many_and_by_what_links_change():
    base = baseline(LIVE / "tp-wide-2", LIVE / "tp-wide-2.yaml")
    texts = "layers 4 -> 6", "layers 4 -> 8", "layers 4 -> 8 and scale_out.bandwidth x2"
    answered = steps(base, [(text, parse_change(text)) for text in texts])
    ratios = [answer.step / base.timeline.makespan for answer in answered]
    errors = [
        interval.prediction_pct / 100 / ratio
        for interval, ratio in zip(intervals(base, answered), ratios, strict=True)
    ]
    copies = [own_error(COPIES) * math.log(times) for times in (1.5, 2, 2)]
    links = replay_error("all-reduce") * moved(ratios[2] / ratios[1])
    assert errors == pytest.approx([copies[0], copies[1], math.hypot(copies[2], links)])


def test_a_class_is_drawn_to_all_by_as_many_points_as_a_program_has():
    table = {
        (name, WHOLE): Errors(
            (name, WHOLE), count, 0.0, 0.0, shared=shared, machines=(f"{name}-2", f"{name}-4")
        )
        for name, count, shared in (("shards", 4, 0.1), ("messages", 4, 0.3))
    }
    shards, exchanges = (replay_error(name, WHOLE, table) for name in ("shards", "all-to-all"))
    # t at 0.975: of 0.03**2 / (0.005**2 / 2 + 0.025**2 / 4) = 5.3 degrees of freedom, and of 4
    assert shards == pytest.approx(2.571 * 0.03**0.5, rel=0.01)
    assert exchanges == pytest.approx(2.776 * 0.05**0.5, rel=0.01)


def test_scatter_that_an_interval_counts_by_itself_is_not_in_its_error_of_predictions():
    assert all(replay_error(name, REST) < replay_error(name, WHOLE) for name in CLASSES)


@pytest.mark.parametrize(
    ("gathered", "name"), [(2.0, "shards"), (1.0, "shards"), (0.1, "all-reduce")]
)
def test_all_reduces_beside_as_many_bytes_of_all_gathers_are_of_shards(gathered, name):
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1))
    for number, (kind, size) in enumerate((("all_reduce", 1.0), ("all_gather", gathered))):
        call = builder.call(CallRow(kind, group, sequence=number, size=size * 2**20))
        for rank in (0, 1):
            builder.op(What.COLLECTIVE, rank=rank, lane=kind, name=kind, duration=0.0, call=call)
    step = Scenario(builder.build(), load_cluster("dgx-a100")).run()
    assert class_of(step) == name


@pytest.mark.parametrize("name", ["zero3-2", "ddp-2"])
def test_the_interval_of_a_recorded_step_holds_what_the_replay_is_off_its_own_recording(name):
    base = baseline(LIVE / name, LIVE / "net250.yaml")
    off = abs(base.replayed_step / base.loaded.measured_step - 1)
    assert base.step_interval_pct == pytest.approx(100 * (own_error("step") + off))
