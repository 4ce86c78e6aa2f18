"""Documents of validations: rows of their reports, written by hand, as they are to be read."""

import math
from statistics import median

import pytest

from experiments.documents.validation import calls_charts, spread_of_errors
from experiments.output.document import Chart, Table, Text
from experiments.output.words import percent, say_time
from experiments.priors.errors import serving_prior
from experiments.questions.validation.ratios import RatioPrediction, RatiosReport
from experiments.questions.validation.recordings import StepError, ValidationReport
from experiments.questions.validation.serving import LogFigure, RequestTimes, ServingLogReport
from experiments.questions.validation.steps import StepPrediction, StepsReport
from experiments.settings import EVERY, Settings
from experiments.validation.errors import ErrorSummary, Prediction, Score
from experiments.validation.measured_steps import UnreadStep
from experiments.validation.predicted_points import PointError
from topologies import load_cluster

STEP = StepError(
    "runs/a", "here", "3", 0.020, 0.022, 10.0, -2.0, 1.0, 3e-3, 1e-3, 1000, 900, 1.0, 0.75,
    communication_error_pct=-4.0, pinned_pct=2.5,
)  # fmt: skip


def validated(*steps, points=(), brief=False, scores=()):
    report = ValidationReport(steps, Settings(), (), points, brief=brief, scores=scores)
    return report.document()


def rows_of(document, head):
    (table,) = (table for table in document.blocks(Table) if table.columns[0] == head)
    return [tuple(row.cells) for row in table.rows]


def texts(document):
    return [text.text for text in document.blocks(Text)]


def test_a_step_is_a_row_with_its_errors_and_one_without_answer_its_reason():
    broken = StepError("runs/a", "here", "4", note="no kernels")
    whole = StepError("runs/b", "here", EVERY, note="no end")
    early = StepError("runs/b", "there", "1", 0.5, 0.4, -20.0, call_end_s=2e-3)
    document = validated(STEP, broken, whole, early)
    first, second, third = (
        [tuple(row.cells) for row in table.rows] for table in document.blocks(Table)
    )
    assert first == [
        (
            *("3", "20 ms", "22 ms", "+10.00 %", "-2.00 %", "+1.00 %", "3 ms", "-4.00 %"),
            *("2.5 %", "900/1,000", "75.00 %"),
        )
    ]
    assert second == []
    assert third[0][:7] == ("1", "500 ms", "400 ms", "-20.00 %", "", "", "2 ms")
    assert "step 4 cannot be replayed: no kernels" in texts(document)
    assert "cannot be replayed: no end" in texts(document)
    assert document.headline == (
        "4 steps are replayed with a median absolute error of 15.00 % (2.00 % with recorded"
        " transfer times, 1.00 % calibrated on the other steps)."
    )
    assert validated(early).headline.startswith("1 step is replayed")
    assert validated(broken).headline == "None of 1 step can be compared."


def test_steps_are_drawn_by_trace_measured_beside_simulated():
    slow = StepError("runs/a", "here", "5", 2.0, 1.0, -50.0)
    unread = StepError("runs/a", "here", "6", measured_s=3.0)
    other = StepError("runs/c", "here", "1", 0.5, 0.4)
    charts = validated(STEP, slow, unread, other).blocks(Chart)
    assert [chart.title for chart in charts] == ["a", "c"]
    line, points = charts[0].series
    assert (list(line.x), list(line.y)) == ([0, 1], pytest.approx([0.022, 1.0]))
    assert (list(points.y), list(points.errors)) == (pytest.approx([0.02, 2.0]), [(0.0, 0.0)] * 2)
    assert list(charts[0].x.ticks) == [(0, "3"), (1, "5")]
    assert charts[0].y.title == "step time [s]"
    assert charts[1].y.title == "step time [ms]"
    assert list(charts[1].series[0].y) == pytest.approx([400.0])


def point(what_if="", factor=None, **fields):
    return PointError(
        "runs/a", "here", 0.020, what_if=what_if, factor=factor, predicted_s=0.022, **fields
    )


POINTS = (
    point("net x4", 4.0, error_pct=10.0, calibrated_s=0.02, calibrated_error_pct=1.0),
    point(
        "net x2", 2.0, error_pct=-30.0, measured_mad_s=1.5e-4, utility_measured_pct=12.34,
        utility_predicted_pct=10.0, points_apart=-2.34,
    ),
    PointError("runs/a", "here", 0.020, what_if="net x8", note="too few nodes"),
)  # fmt: skip


def test_a_point_is_a_row_and_a_recording_a_summary_of_its_points():
    document = validated(points=POINTS)
    first, second = rows_of(document, "what if")
    assert first == ("net x4", "20 ms", "22 ms", "+10.00 %", "", "", "", "+1.00 %")
    assert second == (
        *("net x2", "20 ± 0 ms", "22 ms", "-30.00 %", "12.3 %", "10.0 %", "-2.3", ""),
    )
    assert "net x8: too few nodes" in texts(document)
    assert [table.columns[0] for table in document.blocks(Table)] == ["what if"]
    brief = validated(points=POINTS, brief=True)
    assert [table.columns[0] for table in brief.blocks(Table)] == ["recording"]
    assert rows_of(brief, "recording") == [
        ("a", "2 of 3", "20.00 %", "-30.00 %", "1.00 %", "+1.00 %", "12.3 %", "10.0 %")
    ]
    assert "2 measured steps are predicted with a median absolute error of 20.00 %" in (
        document.headline
    )
    assert document.headline.endswith("Savings are off by 2.3 percentage points (median).")


def test_a_measurements_scatter_has_the_digits_of_its_median():
    scattered = PointError("a", "b", 0.02034, predicted_s=0.02, measured_mad_s=1.5e-4)
    ((_, measured, *_),) = rows_of(validated(points=(scattered,)), "what if")
    assert measured == "20.34 ± 0.15 ms"


def test_points_are_drawn_over_the_factor_if_each_has_one_of_one_resource():
    (chart,) = validated(points=POINTS).blocks(Chart)
    line, points = chart.series
    assert list(line.x) == [1.0, 2.0]
    assert [label for _, label in chart.x.ticks] == ["2x", "4x"]
    assert points.reach == (pytest.approx([0.15, 0.0]),) * 2
    assert "times as good" in chart.x.title
    (mixed,) = validated(points=(*POINTS, point("ring"))).blocks(Chart)
    assert list(mixed.series[0].x) == [0, 1, 2]
    assert {label for _, label in mixed.x.ticks} == {"ring", "net x2", "net x4"}
    two = (POINTS[0], point("compute x2", 2.0))
    (of_two,) = validated(points=two).blocks(Chart)
    assert list(of_two.series[0].x) == [0, 1]


WORST = Prediction("runs/a net x2", -30.0)


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (None, "no prediction has a measurement to compare with"),
        (
            ErrorSummary(5, 4.0, 9.0, -1.0, 0, 0, None, None, 0, 0, (WORST,)),
            "90 % of points within 9.00 %, bias -1.00 %; largest error -30.00 %: runs/a net x2",
        ),
        (
            ErrorSummary(5, 4.0, 9.0, -1.0, 3, 4, 2.04, 7.06, 0, 0, (Prediction("", 5.0), WORST)),
            "90 % of points within 9.00 %, bias -1.00 %; 3 of 4 inside their 95 % interval (median"
            " half-width 2.0 percentage points; 95 % of savings are off by at most 7.1); largest"
            " error +5.00 %",
        ),
        (
            ErrorSummary(5, 4.0, 9.0, 0.0, 3, 4, None, None, 0, 0, (WORST,)),
            "90 % of points within 9.00 %, bias +0.00 %; 3 of 4 inside their 95 % interval; largest"
            " error -30.00 %: runs/a net x2",
        ),
    ],
)
def test_the_spread_of_errors_in_words(summary, words):
    assert spread_of_errors(summary) == words


def test_calls_are_drawn_over_their_size_in_a_panel_for_each_place():
    calls = [
        ("all_reduce", 2, 16, 2048.0, 4e-6, 5e-6),
        ("all_reduce", 2, 16, 1024.0, 2e-6, 3e-6),
        ("all_gather", None, 8, 1024.0, 1e-6, 2e-6),
        ("all_gather", 2, 16, 0.0, 1e-6, 2e-6),
    ]
    alone, two = calls_charts(calls)
    assert (alone.title, two.title) == ("8 ranks", "16 ranks on 2 nodes")
    modelled, measured = two.series
    assert (modelled.name, modelled.kind) == ("all-reduce", "rule")
    assert list(modelled.x) == list(measured.x) == [1024.0, 2048.0]
    assert list(modelled.y) == pytest.approx([3.0, 5.0])
    assert list(measured.y) == pytest.approx([2.0, 4.0])
    assert {series.colour for series in alone.series} != {series.colour for series in two.series}


def prediction(number, **fields):
    return StepPrediction(
        f"s{number}", f"t.csv:{number}", "lab", "H100", "here", "m", "megatron", 1024, "tp8",
        **{"measured_step_s": 2.0, "predicted_step_s": 1.5, "error_pct": -25.0, **fields},
    )  # fmt: skip


def asked(steps):
    """The rows of predictions; none is compared with another."""
    return tuple(UnreadStep(step.id, "lab", "H100", "here", None, step.place, "") for step in steps)


def test_predicted_steps_are_listed_by_source_and_refusals_counted_beyond_the_first():
    refused = [
        prediction(n, predicted_step_s=None, error_pct=None, refused=f"no {n}") for n in range(23)
    ]
    steps = (prediction(98), prediction(99, error_pct=5.0), *refused)
    document = StepsReport(steps, asked(steps), Settings()).document()
    expected = ("m", "here", "1,024", "tp8", "2 s", "1.5 s")
    assert rows_of(document, "id") == [
        ("s98", *expected, "-25.00 %"), ("s99", *expected, "+5.00 %")
    ]  # fmt: skip
    lines = texts(document)
    assert [line for line in lines if line.startswith("refused: ")] == [
        f"refused: no {n}" for n in range(20)
    ]
    assert "and 3 more: --output json has all" in lines
    assert document.headline == (
        "2 measured steps are predicted with a median absolute error of 15.00 %."
    )
    (errors,) = (table for table in document.blocks(Table) if table.columns[0] == "by")
    assert errors.rows[0].cells[2:] == ("25", "23", "15.00 %", percent(23.0), "-10.00 %")
    assert errors.columns[: errors.keys] == ("by", ""), "what stands before every part of a row"
    nothing = StepsReport(
        tuple(refused[:20]), asked(refused[:20]), Settings(), brief=True
    ).document()
    assert nothing.headline == "None of 20 measured steps could be predicted."
    assert not any("more: --output json" in line for line in texts(nothing))
    assert not any(table.columns[0] == "id" for table in nothing.blocks(Table))


def ratio(error, knob="batch", *, known=True, refused=""):
    values = (1.5, None if refused else 1.5 * (1 + error / 100), None if refused else error)
    return RatioPrediction("t.csv:2", "lab", "m", knob, "8", "16", known, *values, refused=refused)


def test_predicted_ratios_are_listed_with_errors_by_knob():
    rows = (ratio(10.0), ratio(-4.0), ratio(2.0, "tp", known=False), ratio(0, refused="no 16"))
    errors = [10.0, 4.0, 2.0]
    score = Score("other", 3, ErrorSummary(2, 4.0, 9.0, -1.0, 0, 0, None, None, 0, 0, (WORST,)))
    missing = Score("third", 0, None)
    document = RatiosReport(rows, Settings(), scores=(score, missing)).document()
    assert rows_of(document, "model") == [
        ("m", "8 to 16", "1.500", f"{1.5 * (1 + error / 100):.3f}", percent(error, signed=True))
        for error in (10.0, -4.0, 2.0)
    ]
    knobs = {row[0]: row[1:] for row in rows_of(document, "changed setting")}
    assert knobs["all"] == ("4", "1", percent(median(errors)), "10.00 %")
    assert knobs["batch"] == ("3", "1", "7.00 %", "10.00 %")
    assert knobs["tp"][:2] == ("1", "0")
    assert knobs["both settings known"][:2] == ("3", "1")
    assert document.headline == (
        "3 measured ratios of 4 are predicted with a median absolute error of 4.00 %."
    )
    assert rows_of(document, "tool") == [
        ("other", "3", "4.00 %", "9.00 %", "-1.00 %", "runs/a net x2"),
        ("third", "0", "", "", "", ""),
    ]
    assert "refused: no 16" in texts(document)
    unknown = RatiosReport((ratio(2.0, known=False),), Settings()).document()
    assert "both settings known" not in [row[0] for row in rows_of(unknown, "changed setting")]
    assert not any(
        section.anchor == "ratios"
        for section in RatiosReport(rows, Settings(), True).document().sections
    )
    none = RatiosReport((ratio(0, refused="no 16"),), Settings()).document()
    assert not any(section.anchor == "ratios" for section in none.sections)
    assert none.headline == "None of 1 measured ratio could be predicted."


def test_figures_of_a_serving_log_are_listed_with_how_alike_requests_are_ordered():
    figures = (
        LogFigure("tpot", "mean", 0.021, 0.02, 5.0),
        LogFigure("e2e", "p99", 3.0, 4.0, -25.0),
        LogFigure("ttft", "p50", 0.5, None, None),
    )
    alike = {"ttft": 0.98765, "tpot": math.nan}
    cluster, settings = load_cluster("dgx-a100"), Settings()
    request = RequestTimes("1", 0.5, 0.02, 3.0, None, 0.02, 4.0)
    given = "vLLM", 0, None, ("all2all_backend",), (), serving_prior("vllm")
    report = ServingLogReport((request,) * 2, figures, alike, cluster, settings, *given)
    document = report.document()
    assert rows_of(document, "figure") == [
        ("tpot mean", say_time(0.02), say_time(0.021), "+5.00 %"),
        ("e2e p99", "4 s", "3 s", "-25.00 %"),
        ("ttft p50", "", "500 ms", ""),
    ]
    assert "not modelled: all2all_backend" in str(document.trust.doubts[0])
    assert document.facts["ranks"] == "Spearman's correlation: ttft 0.988"
    assert document.headline == (
        "2 requests: mean TPOT is off by +5.00 %, p99 of end-to-end latency by -25.00 %."
    )
