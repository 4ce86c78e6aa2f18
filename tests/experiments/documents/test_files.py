"""Documents about files: what a trace lacks, who holds up a job, metrics and traffic."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twofold as tf
from collectives.traffic import TrafficWindow
from experiments.documents import files as documents
from experiments.output.document import Chart, Table
from experiments.questions.inspect_trace import HangReport
from experiments.questions.metrics import Metric
from helpers.places import SAMPLES
from helpers.tries import tries
from traces.core.loaded import Gap
from traces.flight_recorder.hang import Hang, StuckCall

GPU = SAMPLES / "gpu-dp2-tp4"


@tries(60)
@given(st.lists(st.integers(0, 60), max_size=24, unique=True).map(sorted))
def test_runs_of_three_ranks_and_more_are_shortened(ranks):
    text = documents._ranks(ranks)
    if text.endswith("in all)"):
        text, _, count = text.partition(", ... (")
        assert int(count.split()[0]) == len(ranks)
        assert text.count(",") == 7
    read = []
    for part in filter(None, text.split(", ")):
        first, _, last = part.partition("-")
        if last:
            assert int(last) - int(first) >= 2
        read += range(int(first), int(last or first) + 1)
    assert read == ranks[: len(read)]
    assert ("..." in documents._ranks(ranks)) == (len(read) < len(ranks))
    parts = text.split(", ")
    if 1 < len(parts) <= 8 and read == ranks:
        assert documents._ranks(ranks, " and ") == f"{', '.join(parts[:-1])} and {parts[-1]}"


def stuck(**fields):
    usual = {
        "group": "dp", "ranks": (0, 1, 2, 3), "sequence": 7, "kinds": ("all_reduce",),
        "sizes_bytes": (4096,), "dtype": "fp32", "since_s": 0.0, "joined": (0, 1), "started": (),
        "missing": (), "unknown": (),
    }  # fmt: skip
    return StuckCall(**{**usual, **fields})


def hanging(*calls, culprits=(), circle=(), not_dumped=(), job_ranks=4):
    hang = Hang((), job_ranks, calls, culprits, circle, not_dumped)
    return HangReport(command="", trace="dumps", hang=hang).document()


@pytest.mark.parametrize(
    ("calls", "named", "headline", "cause"),
    [
        ((), {}, "every call that was made had ended.", ""),
        (
            (stuck(joined=(0, 1, 2, 3)),), {},
            "no rank is missing; the oldest call that had not ended is all_reduce 7 of 4 KiB of"
            " dp[4].",
            "All of its ranks made it",
        ),
        (
            (stuck(missing=(3,), joined=(0, 1, 2)),), {"culprits": (3,)},
            "rank 3 holds up the job: it has not made all_reduce 7 of 4 KiB of dp[4], in which"
            " ranks 0-2 wait.",
            "3 ranks wait for them",
        ),
        (
            (stuck(missing=(2, 3), joined=(0,), sizes_bytes=(None,)),), {"culprits": (2, 3)},
            "ranks 2 and 3 hold up the job: they have not made all_reduce 7 of dp[4], in which"
            " rank 0 waits.",
            "1 rank waits for them",
        ),
        (
            (stuck(missing=(2,)), stuck(missing=(3,), joined=(0, 1, 2), sequence=8, since_s=1.0)),
            {"culprits": (2, 3)},
            "ranks 2 and 3 hold up the job: rank 3 has not made all_reduce 8",
            "3 ranks wait",
        ),
        (
            (stuck(missing=(1,)),), {"circle": (0, 1, 3)},
            "ranks 0, 1 and 3 wait for each other", "They make their calls",
        ),
        (
            (stuck(unknown=(2, 3)), stuck(unknown=(3,))), {},
            "2 calls had not ended; it is not recorded whether ranks 2 and 3 made them.",
            "Add the dumps",
        ),
        (
            (stuck(kinds=("all_reduce", "all_gather")),), {"culprits": (3,)},
            "the ranks of dp disagree about call 7: all_reduce, all_gather.",
            "Ranks that make different calls",
        ),
        (
            (stuck(), stuck(sizes_bytes=(4096, None))), {},
            "the ranks of dp disagree about call 7: all_reduce of 4,096 B and of unknown.",
            "Ranks that make different calls",
        ),
        (
            (stuck(kinds=("message",), ranks=(2, 5), joined=(2, 5)),), {},
            "the oldest call that had not ended is the message of 4 KiB from rank 2 to rank 5.",
            "All of its ranks",
        ),
    ],
)  # fmt: skip
def test_a_hang_names_the_ranks_that_hold_it_up_and_what_they_have_not_made(
    calls, named, headline, cause
):
    document = hanging(*calls, **named)
    assert document.headline.startswith("dumps: ")
    assert headline in document.headline
    assert document.cause.startswith(cause)
    assert bool(document.sections) == bool(calls)


def test_calls_of_a_hang_are_tabulated_by_relevance():
    calls = [
        stuck(sequence=1, since_s=0.0),
        stuck(sequence=2, since_s=1.0, missing=(2,), joined=(0,)),
        stuck(sequence=3, since_s=2.0, missing=(2,), joined=(0, 1)),
        stuck(sequence=4, since_s=3.0, missing=(2, 3)),
        stuck(sequence=5, since_s=4.0, sizes_bytes=(1, 2), joined=(3,)),
        stuck(sequence=6, since_s=-1.0, unknown=(3,), joined=(1,)),
    ]
    document = hanging(*calls, culprits=(2,), not_dumped=(1, 2, 3))
    (table,) = document.blocks(Table)
    numbers = [row.cells[2] for row in table.rows]
    # Disagreements, then what culprits lack, most waiting first; then others the same way
    assert numbers == ["5", "3", "2", "4", "1", "6"]
    assert table.columns[-1] == "|unknown"
    by_number = {row.cells[2]: row.cells for row in table.rows}
    assert by_number["2"][4:] == ("1 s", "0", "2", "")
    assert by_number["6"][-2:] == ("none", "3")
    assert table.most == 10
    assert document.facts["dumps"] == "0 of 4 ranks; no dump of 1-3"
    assert document.facts["under way"].startswith("6 calls, 3 of them")
    known = hanging(*calls[:2], culprits=(2,))
    assert known.blocks(Table)[0].columns[-1] == "|missing"
    assert [len(row.cells) for row in known.blocks(Table)[0].rows] == [7, 7]


@pytest.fixture(scope="module")
def inspected():
    return tf.inspect(GPU)


def covered(report, **changes):
    coverage = replace(report.loaded.coverage, **changes)
    return replace(report, loaded=replace(report.loaded, coverage=coverage)).document()


def test_what_a_trace_lacks_is_counted(inspected):
    whole = {"starts": {"launch": 4}, "collectives": 2000, "collectives_matched": 2000}
    assert covered(inspected, **whole, sizes_known=2000).cause == ""
    document = covered(
        inspected,
        starts={"launch": 3, "unexplained": 1},
        collectives=2000,
        collectives_matched=500,
        sizes_known=250,
    )
    assert document.cause == (
        "The trace is incomplete: 25 % of starts are unexplained, 1,500 of 2,000 collectives lack"
        " ranks, 87.5 % of collectives have no size."
    )
    skipped = (*tuple((f"a/{name}.json", "torn") for name in "abcde"), ("f.json", "empty"))
    facts = covered(inspected, **whole, skipped=skipped, clock_offset={3: 2e-3}).facts
    assert facts["skipped"] == "a.json, b.json, c.json and 2 more: torn\nf.json: empty"
    assert facts["clocks"] == "rank 3: 2 ms subtracted"
    assert covered(inspected, steps=(), step="all").facts["steps"].startswith("none marked; this")
    three = covered(inspected, skipped=skipped[:3], **whole).facts["skipped"]
    assert three == "a.json, b.json, c.json: torn"


def test_a_trace_is_described_by_its_own_counts(inspected):
    document = inspected.document()
    coverage, calls = inspected.coverage, inspected.loaded.workload.calls
    assert f"has 8 of {coverage.ranks_in_job} ranks, a step of" in document.headline
    assert document.headline.endswith(f", {len(calls):,} calls.")
    (table,) = (each for each in document.blocks(Table) if each.columns[0] == "collective")
    assert sum(int(row.cells[4].replace(",", "")) for row in table.rows) == sum(
        call.count for call in inspected.calls
    )
    unmeasured = replace(inspected.loaded, measured_step=float("nan"))
    assert "a step of" not in replace(inspected, loaded=unmeasured).document().headline
    gap = Gap(name="k" * 40, rank=3, lane="l" * 30, time=1.0, length=2e-3, behind="b")
    (row,) = documents.gaps([gap]).rows
    assert row.cells[1:2] + row.cells[3:] == ("3", "1 s", "2 ms", "b")
    assert (len(row.cells[0]), len(row.cells[2])) == (28, 20)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("1", 0.12345, "12.35 %"), ("x", 1.23456, "1.235x"), ("n", 12345.6, "12,346"),
        ("1/s", 123456.0, "1.235e+05 /s"), ("s", 0.002, "2 ms"), ("B", 3e9, "3 GB"),
        ("", "kernel", "kernel"), ("s", None, "-"),
    ],
)  # fmt: skip
def test_a_metric_has_the_format_of_its_unit(unit, value, text):
    metric = Metric("m", "", unit, value, 3.0)
    assert documents.say_metric(metric, value) == text
    if value is not None:
        assert documents._best_known_value(metric) == text
    simulated = Metric("m", "", unit, None, value)
    assert documents._best_known_value(simulated) == text


@pytest.fixture(scope="module")
def measured():
    return tf.metrics(GPU)


def test_metrics_are_tabulated_and_what_is_unknown_says_what_would_record_it(measured):
    rows = (
        Metric("step_time", "", "s", 2.0, 1.0, published="avg"),
        Metric("communication_fraction", "", "1", None, 0.25),
        Metric("mfu", "", "1", None, None, published="mfu", note="a card"),
        Metric("tokens_per_second", "", "1/s", None, None, note="a card"),
        Metric("bandwidth", "dp", "B/s", 1e9, None),
        Metric("dominant_kernel", "", "", "gemm", None),
        Metric("communication_overlap", "", "1", 0.5, None),
    )
    document = replace(measured, metrics=rows, findings=(), notes=()).document()
    assert document.headline == (
        "The measured step takes 2 s; ranks communicate during 25.00 % of it."
    )
    (table,) = (
        each
        for each in document.blocks(Table)
        if each.columns[0] == "metric" and "|which" in each.columns
    )
    assert next(row.cells for row in table.rows) == ("step time", "", "2 s", "1 s")
    assert len(table.rows) == 4
    assert [stat.value for stat in document.stats][-1] == "50.00 %"
    below = next(
        block for section in document.sections for block in section.blocks
        if type(block).__name__ == "FactList"
    )  # fmt: skip
    assert below.facts["not recorded"] == "mfu, tokens per second: a card"
    assert below.facts["dominant kernel"] == "gemm"
    only = replace(measured, metrics=(replace(rows[0], measured=None),)).document()
    assert only.headline == "The simulated step takes 1 s."
    assert replace(measured, metrics=()).document().headline.startswith("The trace has no metrics")


def test_traffic_is_drawn_window_by_window_and_call_by_call(measured):
    windows = [
        TrafficWindow(0.0, 0.5e-3, "all_reduce", "dp", 10.0),
        TrafficWindow(0.5e-3, 1e-3, "all_reduce", "dp", 20.0),
        TrafficWindow(0.5e-3, 1e-3, "send_receive", "", 5.0),
    ]
    loaded = replace(measured.loaded, measured_step=2e-3)
    report = replace(measured, loaded=loaded, traffic={"measured": windows, "simulated": None})
    (chart,) = report.document().blocks(Chart)
    first, second = chart.series
    assert (first.name, second.name) == ("all_reduce dp", "send_receive")
    assert (list(first.x), list(first.y)) == ([0.25, 0.75], [10.0, 20.0])
    assert list(first.widths) == [0.5, 0.5]
    assert chart.x.span == (0.0, 2.0)
    assert chart.x.title == "time in the step [ms]"
    assert first.colour != second.colour
    assert chart.arranged == "stack"
