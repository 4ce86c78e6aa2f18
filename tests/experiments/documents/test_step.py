"""Parts that documents of a step share: its path, how far it is trusted, what is assumed."""

from dataclasses import replace

import pytest

import twofold as tf
from experiments.costing.slowdown import SlowDown
from experiments.costing.unrecorded import Stall, Unprofiled
from experiments.documents import step as common
from experiments.output.document import Bars, Doubt, Table, Text
from experiments.priors.doubts import KindError
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import DATA_LOADER, UNEXPLAINED_HOST, What
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")


def chain(*ops, ranks=1, call=0.0):
    """A step of ops one after the other on each rank, and an all-reduce (B) at its end."""
    builder = WorkloadBuilder(job_ranks=ranks)
    group = builder.group(tuple(range(ranks)), "dp")
    made = builder.call(CallRow("all_reduce", group, 0, call)) if call else None
    for rank in range(ranks):
        last = None
        for what, name, lasts in ops:
            op = builder.op(what, rank=rank, lane="s", name=name, duration=lasts)
            if last is not None:
                builder.edge(last, op)
            last = op
        if made is not None:
            op = builder.op(What.COLLECTIVE, rank=rank, lane="n", name="c", duration=0.0, call=made)
            builder.edge(last, op)
    return Scenario(builder.build(), CLUSTER).run()


GEMM, MM = (What.COMPUTE, "gemm"), (What.HOST, "aten::mm")
COPY = What.COPY, "Memcpy HtoD (Pinned -> Device)"


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ([(*GEMM, 6e-3), (*MM, 4e-3)], "The GPUs are busy: kernels are 60 % of the critical path."),
        (
            [(*GEMM, 4e-3), (*MM, 6e-3)],
            "The GPUs wait for the CPU: host code is 60 % of the critical path.",
        ),
        ([(*MM, 6e-3)], "Host code is 100 % of the critical path."),
        (
            [(*GEMM, 3e-3), (*COPY, 7e-3)],
            "The GPUs wait for copies between host and device: these are",
        ),
        (
            [(*GEMM, 3e-3), (What.HOST, UNEXPLAINED_HOST, 7e-3)],
            "The trace does not explain 70 % of the critical path (unexplained host).",
        ),
        (
            [(*GEMM, 9e-3), (What.HOST, DATA_LOADER, 1e-3)],
            "The GPUs wait for the data loader: its workers take 10 ms for the batches of a step.",
        ),
        ([(*GEMM, 0.0)], ""),
    ],
)
def test_the_cause_is_the_use_of_most_of_the_critical_path(ops, words):
    assert common.cause(CLUSTER, chain(*ops)).startswith(words)


def test_a_step_that_waits_for_the_network_names_its_links():
    busy = common.cause(CLUSTER, chain((*GEMM, 5e-2), ranks=2, call=1e8))
    assert busy == "The GPUs are busy: kernels are 99 % of the critical path, communication is 1 %."
    waits = common.cause(CLUSTER, chain((*GEMM, 1e-6), ranks=2, call=1e9))
    assert waits.startswith("The GPUs wait for the network: communication is 100 % of the critical")
    assert waits.endswith(", most of it on scale-up links.")
    little = common.cause(CLUSTER, chain((*MM, 1e-6), ranks=2, call=8.0))
    assert little.startswith("The ranks wait for the network: communication is ")
    assert "links" not in little


@pytest.fixture(scope="module")
def base():
    return tf.replay(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2).base


def knowing(base, measured=1.0, known=None, **fields):
    """The baseline with other fields, and what is computed of it set to other values."""
    loaded = replace(base.loaded, measured_step=measured * base.replayed_step)
    changed = replace(base, loaded=loaded, **fields)
    vars(changed).update(known or {})
    return changed


def calls_off(base, **values):
    return {"communication_error": base.communication_error | values}


@pytest.mark.parametrize(
    ("off", "grade", "causes"),
    [(5.0, "good", 0), (5.1, "fair", 0), (25.0, "fair", 0), (25.1, "poor", 1), (50.1, "poor", 1)],
)
def test_calls_that_are_modelled_badly_lower_the_trust(base, off, grade, causes):
    changed = knowing(base, known=calls_off(base, median_absolute_pct=off))
    trust = common.trust(changed)
    assert (trust.grade, len(trust.doubts)) == (grade, causes)
    assert f"modelled collectives {off:.0f} % off (median)" in trust.text
    if causes:
        assert trust.doubts[0].cause == f"modelled collectives are {off:.0f} % off the measured" + (
            " ones (median)"
        )
        assert ("--cluster" in trust.doubts[0].remedy) == (off > 50)
    extra = common.trust(changed, doubts=[Doubt("more")])
    assert extra.grade == "poor"
    assert len(extra.doubts) == causes + 1


def test_trust_says_how_much_depends_on_no_resource(base):
    for share, is_said in ((0.4, False), (0.6, True)):
        doubts = replace(base.doubts)
        vars(doubts)["pinned"] = {"gap": share}
        text = common.trust(knowing(base, known={"doubts": doubts})).text
        assert ("; 1 % of the step depends on no resource" in text) == is_said
    doubts = replace(base.doubts)
    vars(doubts).update(pinned={"gap": 6.0, "software": 50.0}, step_before_pct=10.0)
    assert not common.trust(knowing(base, known={"doubts": doubts})).doubts  # software is known
    vars(doubts).update(pinned={"gap": 6.0, "a": 3, "b": 2, "c": 1}, step_before_pct=10.6)
    first, second = common.trust(knowing(base, known={"doubts": doubts})).doubts
    assert first.cause.startswith("12 % of the step is unexplained (gap, a, b), so")
    assert second.cause.startswith("11 % of the critical path is work launched before")


def test_a_step_without_a_profiler_is_fair_and_one_that_stays_longer_is_poor(base):
    stalls = tuple(Stall(1, "main", f"op{at}", "m", 3e-3, 1e-3, 2e-3) for at in range(7))
    whole = base.replayed_step
    for rest, overhead, grade in ((0.0, 0.0, "good"), (0.0, 0.1, "fair"), (0.021, 0.0, "poor")):
        unprofiled = Unprofiled(whole, 1.2 * whole, whole * (1 + rest), 0.1, stalls, overhead)
        changed = knowing(base, unprofiled=unprofiled, known=calls_off(base))
        trust = common.trust(changed)
        if rest:
            assert trust.grade == grade
            assert unprofiled.sentence() in [doubt.cause for doubt in trust.doubts]
        else:
            assert trust.grade == grade
            assert unprofiled.sentence() in trust.text
            assert "replay fitted to the unprofiled step" in trust.text
        lines = common.stalls(changed)
        assert lines[0] == unprofiled.sentence()
        assert lines[1] == "rank 1 main op0: 3 ms -> 2 ms"
        assert len(lines) == 1 + 5
    assert common.stalls(base) == []


def test_the_errors_of_calls_are_listed_by_kind_and_those_not_compared_are_counted(base):
    kinds = [KindError("all_reduce", 2000, -0.04, 3.0), KindError("all_gather", 1, 4.26, 4.3)]
    errors = {"calls": 2001, "not_compared": 1500, "median_pct": 1.25, "kinds": kinds}
    changed = knowing(base, known=calls_off(base, **errors, median_absolute_pct=3.14))
    assert common.details(changed)["collectives"] == [
        "median error +1.2 %, absolute 3.1 %, over 2,001 calls",
        "all_reduce +0.0 % (2,000)",
        "all_gather +4.3 % (1)",
        "1,500 not comparable",
    ]
    alone = errors | {"kinds": kinds[:1], "calls": 1, "not_compared": 0}
    changed = knowing(base, known=calls_off(base, **alone, median_absolute_pct=3.14))
    (line,) = common.details(changed)["collectives"]
    assert line.endswith("over 1 call")
    none = {"median_pct": None, "median_absolute_pct": None, "note": "why", "kinds": []}
    for calls, apart, expected in ((0, 0, []), (1, 0, ["why"]), (0, 1, ["why"])):
        counts = {"calls": calls, "not_compared": apart}
        changed = knowing(base, known=calls_off(base, **none, **counts))
        assert common.details(changed)["collectives"] == expected


def test_details_say_how_long_kernels_take_beside_calls_and_from_where(base):
    assert common.slow_down(replace(base, slow_down=None)) == ""
    for slope, longer, source in (
        (SlowDown(0.123, 0.05, 0.2, 40), "12.3 %", "the trace, 5 to 20 %"),
        (SlowDown(0.1, 0.1, 0.1, 0), "10.0 %", "--slow-down"),
        (SlowDown(-0.1, -0.2, 0.1, 3), "0.0 %", "the trace, -20 to 10 %"),
    ):
        words = f"{longer} longer during communication (from {source})"
        assert common.slow_down(replace(base, slow_down=slope)) == f"kernels take {words}"
    prior = {"shared": 0.2, "held_to": "x", "origins": [{"known": "measured", "share_pct": 59.6}]}
    assert common.kernels(prior) == [
        "measured 60 %",
        "their sum ± 22 % (1 standard deviation)",
        "as seen in x",
    ]
    assert common.kernels({**prior, "held_to": ""})[1:] == [
        "their sum ± 22 % (1 standard deviation)"
    ]
    assert common.kernels(None) == []


def test_recorded_times_of_calls_are_said_to_be_certain(base):
    tiers = base.network_prior["tiers"]
    plain = common.network({"tiers": tiers, "calls_told": 0, "calls": 4000})
    assert len(plain) == len(tiers) // 2
    for told, words in ((4000, "all calls"), (1500, "1,500 of 4,000 calls")):
        more = common.network({"tiers": tiers, "calls_told": told, "calls": 4000})
        assert more[:-1] == plain
        assert more[-1].startswith(f"{words} take their recorded times")
    assert common.network({"tiers": [], "calls_told": 4, "calls": 4}) == []


def test_settings_and_steps_are_said_once(base):
    settings = replace(base.settings, algorithms=("a=ring", "b=tree"), kernels="megatron", ranks=2)
    said = common.details(replace(base, settings=settings))["settings"].splitlines()
    assert said == [
        "algorithms a=ring, b=tree",
        "kernels by the rules of megatron",
        "ranks 2 were read; the others are copies of them",
    ]
    copied = replace(base.settings, replicate=True)
    assert common.details(replace(base, settings=copied))["settings"] == (
        "missing ranks are copies of recorded ones"
    )
    coverage = replace(base.loaded.coverage, typical_of=(3, 4, 5))
    typical = replace(base.loaded, coverage=coverage)
    assert common.which_step(typical).endswith(", with the typical op times of 3 steps")
    assert "median step" in common.details(replace(base, loaded=typical))
    assert "measured step" in common.details(base)
    assert [common.on_nodes(nodes) for nodes in (None, 1, 2)] == ["", ", 1 node", ", 2 nodes"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7200.0, "2 h"), (7100.0, "118 min"), (120.0, "2 min"), (119.0, "119 s"), (0.5, "500 ms"),
        (4.5e6, "1,250 h"), (36e4, "100 h"), (35.96e4, "99.9 h"), (1.234e7, "3,430 h"),
    ],
)  # fmt: skip
def test_times_between_failures_are_in_hours_or_minutes(seconds, text):
    assert common._format_long(seconds) == text


def test_failures_are_tabulated_row_by_row(base):
    failures = "mtbf 50000 h, checkpoint 60 s, restart 10 min"
    report = tf.utility(
        SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2, resources=["compute"], failures=failures
    )
    result = report.failing.answer()
    section = common.failures_section(report.failing)
    (text,) = (block.text for block in section.blocks if isinstance(block, Text))
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    shares = [result[f"{name}_pct"] for name in ("productive", "checkpoints", "redone", "restarts")]
    assert sum(shares) == pytest.approx(100, abs=0.1)
    for share in shares:
        assert f"{share:.2f} %" in text
    for row, cells in zip(result["better"], table.rows, strict=True):
        assert cells.bar == row.utility_pct
        assert cells.cells[3:] == (f"{row.productive_pct:.2f} %", f"{row.utility_pct:.2f} %")
    assert table.columns[0] == "twice as good"


def test_the_path_is_drawn_in_parts_that_add_up_to_it():
    timeline = chain((*GEMM, 4e-3), (*MM, 1e-3), ranks=2, call=1e9)
    whole, groups = common.path_section(timeline).blocks
    assert isinstance(whole, Bars)
    assert sum(whole.parts.values()) == pytest.approx(timeline.makespan)
    assert whole.parts["compute"] == pytest.approx(4e-3)
    assert sum(groups.parts.values()) == pytest.approx(timeline.makespan - 5e-3)
    alone = common.path_section(chain((*GEMM, 1.0)))
    assert len(alone.blocks) == 1
