"""Documents of many changes of a step: held to their rows, whatever these are."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

import twofold as tf
from experiments.output.document import Table, Text
from experiments.output.words import NOTHING, better, say_gain, say_resource, say_step
from experiments.points.report import Point
from experiments.points.what_if import RefusedChange
from helpers.documents import chart_of
from helpers.places import SAMPLES

GPU = SAMPLES / "gpu-dp2-tp4"
FEW = {"compute": 40.0, "host": 2.0, "scale_up.bandwidth": 12.0, "scale_out.latency": 0.5}


@pytest.fixture(scope="module")
def utilities():
    return tf.utility(GPU, "dgx-a100", nodes=2)


@pytest.fixture(scope="module")
def swept():
    return tf.sweep(GPU, "dgx-a100", "scale_up.bandwidth", factors=[0.5, 1, 2], nodes=2)


@pytest.fixture(scope="module")
def curved():
    return tf.curve(GPU, "dgx-a100", "scale_up.bandwidth", nodes=2)


@pytest.fixture(scope="module")
def compared():
    return tf.compare(GPU, ["dgx-a100", "hgx-h100", "perlmutter"], nodes=2)


@pytest.fixture(scope="module")
def changed():
    return tf.what_if(GPU, "dgx-a100", ["compute x0.5", "host x2"], nodes=2)


def saving(base, gain, width=None, **named):
    step = base.timeline.makespan * (1 - gain / 100)
    return Point(step_s=step, utility_pct=gain, interval_pct=width, **named)


def of(utilities, gains, width=None, **options):
    """The document of a report with these gains of resources, each with this half width."""
    rows = [
        saving(utilities.base, gain, width, resource=resource) for resource, gain in gains.items()
    ]
    return replace(utilities, points=tuple(rows), **options).document()


def cells_of(document, caption):
    (table,) = (table for table in document.blocks(Table) if table.caption == caption)
    return table, [row.cells for row in table.rows]


def the_step(report):
    return f"the {say_step(report.base.timeline.makespan)} step"


def drawn_in(chart, steps):
    """The factor from seconds to the unit of an axis, in which the longest step is 1 to 1,000."""
    unit = re.search(r"\[(.+)\]", " ".join((chart.x.title, chart.y.title)))[1]
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
    assert 1 <= scale * max(steps) < 1000
    return scale


def test_utilities_are_tabulated_and_drawn_row_by_row(utilities):
    document = utilities.document()
    table, cells = cells_of(document, "utilities")
    chart = chart_of(document, "utility-chart")
    answered = [row for row in utilities.points if row.utility_pct is not None]
    bars, marks = chart.series
    for number, row in enumerate(answered):
        gain = say_gain(row.utility_pct, *row.reach_pct)
        plain = (say_resource(row.resource), row.baseline, row.changed, say_step(row.step_s), gain)
        assert tuple(cells[number][:5]) == plain
        assert table.rows[number].bar == row.utility_pct
        assert bars.y[number] == plain[0]
        assert (bars.x[number], bars.errors[number]) == (row.utility_pct, row.reach_pct)
        below, above = row.reach_pct
        assert below == row.interval_pct
        assert row.utility_pct + above == pytest.approx(
            min(row.utility_pct + row.interval_pct, row.bound_pct)
        )
        assert bars.labels[number] == gain
        assert f"{row.baseline} to {row.changed}" in bars.hints[number]
        assert marks.x[marks.y.index(plain[0])] == row.bound_pct
        if table.columns[-1] == "at most":
            shown = say_gain(row.bound_pct) != say_gain(row.utility_pct + above)
            assert cells[number][5] == (say_gain(marks.x[number]) if shown else "")
    unused = [row for row in utilities.points if row.utility_pct is None]
    assert len(table.rows) == len(answered) + len({row.note for row in unused})
    assert [len(row) for row in cells] == [len(table.columns)] * len(cells)


@pytest.mark.parametrize(
    ("gains", "width", "words"),
    [
        (FEW, 0.2, "GPUs twice as fast save 40.0 ± 0.2 % of {}. In the network, twice the"
         " scale-up bandwidth saves 12.0 ± 0.2 %."),
        ({**FEW, "scale_up.bandwidth": 41}, None, "Twice the scale-up bandwidth saves 41.0 % of {}."
         " Outside the network, GPUs twice as fast save 40.0 %."),
        ({"memory.bandwidth": 9, "scale_up.latency": 3}, None, "In the network, half the"
         " scale-up latency saves 3.0 %."),
        ({"compute": 40.0, "host": 2.0}, None, "GPUs twice as fast save 40.0 % of {}."),
        ({"compute": 40.0, "pcie.bandwidth": 0.05}, None, "Nothing in the network saves 0.1 %."),
        ({"compute": 40.0, "pcie.bandwidth": -3}, 9.0, "Nothing in the network saves 0.1 %."),
        ({"compute": 40.0, "pcie.bandwidth": 0.5}, 0.75, "In the network, no resource is certain"
         " to save anything."),
        ({"compute": 40.0, "pcie.bandwidth": 2.0}, 3.0, "In the network, twice the PCIe bandwidth"
         " saves 2 ± 3 %."),
        ({"pcie.bandwidth": 40.0, "host": 0.9}, 1.0, "Outside the network, no resource is certain"
         " to save anything."),
        ({"pcie.bandwidth": 40.0, "host": 1.0}, 2.0, "Outside the network, hosts twice as fast save"
         " 1 ± 2 %."),
        ({"compute": 0.04, "host": 0.01}, 0.01, "Nothing saves 0.1 % of {}."),
        ({"compute": 0.04, "host": 0.01}, 0.1, "GPUs twice as fast save 0.04 ± 0.10 % of {}."),
        ({"compute": 0.0, "host": -5.0}, 2.0, "Nothing saves 0.1 % of {}."),
        ({}, None, "None of these resources affects {}."),
    ],
)  # fmt: skip
def test_the_headline_of_utilities_names_the_largest_saving_on_either_side(
    utilities, gains, width, words
):
    headline = of(utilities, gains, width).headline
    assert words.format(the_step(utilities)) in headline


def test_less_of_a_resource_costs_and_the_headline_names_the_largest_cost(utilities):
    slower = of(utilities, {"compute": -80.0, "scale_up.bandwidth": -20.0}, factor=0.5)
    assert slower.headline == f"GPUs half as fast cost 80.0 % of {the_step(utilities)}."
    gains = of(utilities, {"compute": -80.0, "scale_up.bandwidth": 20.0}, factor=2.0).headline
    assert gains.startswith("Twice the scale-up bandwidth saves 20.0 %")
    assert of(utilities, {"compute": 5.0}, factor=0.5).headline.startswith("GPUs half as fast save")


def test_bars_of_losses_have_another_colour_and_titles_say_the_factor(utilities):
    document = of(utilities, {"compute": 5.0, "host": 0.0, "pcie.bandwidth": -5.0}, factor=3.0)
    (bars,) = chart_of(document, "utility-chart").series
    assert list(bars.colour) == ["blue", "blue", "orange"]
    assert document.title.startswith("Utility of 3 times: ")
    assert chart_of(document, "utility-chart").title.endswith("utility of 3 times")
    table, _ = cells_of(document, "utilities")
    assert table.columns[0] == "3 times the ..."


def test_savings_per_cost_and_per_power_are_of_what_is_added(utilities):
    rows = [
        saving(utilities.base, 10.0, resource="compute", extra_cost_usd=2e6, extra_power_w=5e3),
        saving(utilities.base, 10.0, resource="host", extra_cost_usd=0.0, extra_power_w=0.0),
        saving(utilities.base, 10.0, resource="scale_up.bandwidth"),
    ]
    report = replace(utilities, points=tuple(rows))
    for per, first, nothing in (
        ("cost", ["2 MUSD", "5 %"], "0 USD"),
        ("power", ["5 kW", "2 %"], "0 W"),
    ):
        table, cells = cells_of(replace(report, per=per).document(), "utilities")
        assert [list(row[5:]) for row in cells] == [first, [nothing, "-"], ["-", "-"]]
        assert "more cost, more power" in table.foot
        assert not table.foot.startswith(";")
    assert cells_of(report.document(), "utilities")[0].foot == ""


def test_a_bound_is_shown_where_its_digits_differ_with_what_the_model_may_be_off_by(utilities):
    rows = [
        saving(utilities.base, 10.0, 2.0, resource="compute", bound_pct=12.04),
        saving(utilities.base, 10.0, 2.0, resource="host", bound_pct=32.0, bound_assumes="b"),
        saving(utilities.base, 10.0, 4.0, resource="pcie.bandwidth", bound_pct=100.0),
        saving(utilities.base, 10.0, 4.0, resource="scale_up.size"),
    ]
    document = replace(utilities, points=tuple(rows), per="cost").document()
    table, cells = cells_of(document, "utilities")
    assert table.columns[-1] == "at most"
    assert [row[-1] for row in cells] == ["", "32.0 %", "100.0 %", ""]
    assert re.search(r"^at most: .*; more cost", table.foot)
    assert document.details["at most"] == "as if b"
    _, marks = chart_of(document, "utility-chart").series
    assert list(marks.x) == [12.04, 32.0, 100.0]


def test_resources_without_effect_are_listed_by_reason_and_tiers_named_once(utilities):
    notes = {
        "scale_out.bandwidth": "one node: no scale-out traffic",
        "scale_out.latency": "one node: no scale-out traffic",
        "pcie.bandwidth": "one node: no scale-out traffic",
        "scale_up.bandwidth": "other",
    }
    rows = tuple(Point(resource=resource, note=note) for resource, note in notes.items())
    table, cells = cells_of(replace(utilities, points=rows).document(), "utilities")
    assert [row[0] for row in cells] == ["scale-out, PCIe", "scale-up bandwidth"]
    spans = [row.span for row in table.rows]
    assert spans == ["unused: the job fits into one node", "unused: other"]


@pytest.mark.parametrize(
    ("gain", "width", "is_doubtful"),
    [(10.0, 9.0, False), (10.0, 11.0, True), (-10.0, 9.0, False), (0.5, 3.0, False), (0.5, 3.1, 1)],
)
def test_a_gain_is_doubtful_if_its_interval_is_wide_and_reaches_beyond_zero(
    utilities, gain, width, is_doubtful
):
    document = of(utilities, {"compute": gain, "host": 0.0}, width)
    causes = [doubt.cause for doubt in document.warning]
    wide = f"the largest gain is uncertain: {say_gain(gain, width)}"
    assert (wide in causes) == is_doubtful
    assert "uncertain" not in " ".join(set(causes) - {wide})


def test_warnings_of_hidden_costs_and_interruptions_are_doubts_once(utilities):
    rows = [
        saving(utilities.base, 9.0, resource=name, warning="hidden: a; b; hidden: c")
        for name in ("compute", "host")
    ]
    document = replace(utilities, points=tuple(rows), interrupted="2 of 3").document()
    assert [doubt.cause for doubt in document.warning] == ["2 of 3", "a", "c"]


def test_the_next_question_is_of_the_gpus_memory_only_if_they_matter_most(utilities):
    first = "twofold utility … -r memory.bandwidth"
    assert of(utilities, {"compute": 9.0, "host": 1.0}).next_steps[0] == first
    for gains in ({"host": 9.0, "compute": 1.0}, {"compute": 9.0, "memory.bandwidth": 1.0}):
        explain = f"twofold explain … --utility {next(iter(gains))}"
        assert of(utilities, gains).next_steps[0] == explain
    assert of(utilities, {}).next_steps[0] == "twofold explain …"


def test_a_sweep_is_tabulated_and_drawn_point_by_point(swept):
    document = swept.document()
    table, cells = cells_of(document, "points")
    chart = chart_of(document, "steps-chart")
    line, rule = chart.series
    scale = drawn_in(chart, [point.step_s for point in swept.points])
    base = swept.base.timeline.makespan
    for number, point in enumerate(swept.points):
        gain = say_gain(point.utility_pct, *point.reach_pct)
        assert cells[number] == (f"{point.factor:g}x", point.value, say_step(point.step_s), gain)
        assert table.rows[number].bar == point.utility_pct
        assert (line.x[number], line.y[number]) == (point.factor, scale * point.step_s)
        longer, shorter = (scale * base * part / 100 for part in point.reach_pct)
        assert line.errors[number] == pytest.approx((shorter, longer))
        assert chart.x.ticks[number] == (point.factor, f"{point.factor:g}x\n{point.value}")
    assert [label[:1] for label in line.labels] == ["-", "", "+"]
    assert list(rule.x) == [0.5, 2.0]
    assert list(rule.y) == [scale * swept.base.loaded.measured_step] * 2
    assert "±" in table.rows[0].cells[3]
    assert chart.y.zero


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((-80.0, 0.0, 12.0), "Twice the scale-up bandwidth saves 12.0 % of {step}. Half the"
         " scale-up bandwidth costs 80.0 %."),
        ((-0.04, 0.0, 12.0), "saves 12.0 % of {step}. Half the scale-up bandwidth changes {step} by"
         " less than 0.1 %."),
        ((-0.1, 0.0, 0.0), "Twice the scale-up bandwidth changes {step} by less than 0.1 %. Half"
         " the scale-up bandwidth costs 0.1 %."),
    ],
)  # fmt: skip
def test_the_headline_of_a_sweep_names_both_ends(swept, gains, words):
    points = [
        replace(point, utility_pct=gain, interval_pct=None)
        for point, gain in zip(swept.points, gains, strict=True)
    ]
    headline = replace(swept, points=tuple(points)).document().headline
    assert words.format(step=the_step(swept)) in headline


def test_a_sweep_of_one_point_or_of_a_resource_without_effect_says_so(swept):
    middle = replace(swept, points=swept.points[1:2]).document()
    assert middle.headline == f"There is only one point, {the_step(swept)} as it is."
    last = replace(swept, points=swept.points[2:]).document().headline
    assert last.count(better("scale_up.bandwidth", 2.0)) == 1
    unused = replace(swept, note="one node: no scale-out traffic").document().headline
    assert unused.endswith(f"does not affect {the_step(swept)}: the job fits into one node.")


def test_a_curve_is_drawn_through_its_points_straight_in_the_inverse_of_the_factor(curved):
    chart = chart_of(curved.document(), "steps-chart")
    points, line, *rest = chart.series
    factors = np.array([point.factor for point in curved.points])
    steps = np.array([point.step_s for point in curved.points])
    scale = drawn_in(chart, steps)
    assert list(points.x) == factors.tolist()
    assert list(points.y) == pytest.approx(scale * steps)
    assert (line.x[0], line.x[-1]) == pytest.approx((factors[0], factors[-1]))
    order = np.argsort(1 / factors)
    between = np.interp(1 / np.array(line.x), (1 / factors)[order], steps[order])
    assert list(line.y) == pytest.approx(scale * between)
    ratios = np.array(line.x)[1:] / np.array(line.x)[:-1]
    assert ratios == pytest.approx(ratios[0])
    assert {at for at, _ in chart.x.ticks} <= set(factors)
    assert {factors[0], factors[-1]} <= {at for at, _ in chart.x.ticks}
    assert len(chart.x.ticks) <= 8
    kinds = [series.kind for series in rest]
    is_certain = curved.certificate in ("convex", "monotone")
    assert kinds.count("band") == is_certain
    assert kinds.count("rule") == (curved.break_even is not None)


@pytest.mark.parametrize("certificate", ["convex", "monotone", "none", "sampled"])
def test_a_curve_shows_its_error_where_it_is_certain_and_says_how_it_is_known(curved, certificate):
    longest = max(point.step_s for point in curved.points)
    step = curved.base.timeline.makespan
    report = replace(curved, certificate=certificate, gap_s=0.02 * longest, break_even=3.0)
    document = report.document()
    chart = chart_of(document, "steps-chart")
    bands = [series for series in chart.series if series.kind == "band"]
    assert len(bands) == (certificate in ("convex", "monotone"))
    for band in bands:
        assert band.name == "within 2 %"
        scale = drawn_in(chart, [longest])
        half = scale * 0.02 * longest
        for ends in band.reach:
            assert ends == pytest.approx([half] * len(band.x))
    (rule,) = (series for series in chart.series if series.kind == "rule")
    assert list(rule.x) == [3.0, 3.0]
    assert rule.y[1] == pytest.approx(drawn_in(chart, [longest]) * longest)
    within = document.blocks(Text)[0].text
    assert f" at most {2 * longest / step:.2g} % of the step" in within
    assert ("(proved" in within) == (certificate in ("convex", "monotone"))


def test_the_headline_of_a_curve_says_from_where_on_a_doubling_hardly_pays(curved):
    first = curved.points[0].factor

    def headline(break_even):
        return replace(
            curved, break_even=break_even, break_even_value="9 GB/s", threshold_pct=2.5
        ).document()

    beyond = headline(first * 3)
    assert f"less than 2.5 % of {the_step(curved)} beyond 9 GB/s ({first * 3:.3g} times" in (
        beyond.headline
    )
    assert len(chart_of(beyond, "steps-chart").series) == len(chart_of(
        headline(first), "steps-chart").series) + 1  # fmt: skip
    assert headline(first).headline.endswith("anywhere in the range.")
    assert headline(None).headline.endswith("at the upper end of the range.")


def test_a_comparison_is_tabulated_and_drawn_cluster_by_cluster(compared):
    document = compared.document()
    table, cells = cells_of(document, "clusters")
    chart = chart_of(document, "steps-chart")
    whole, part = chart.series
    scale = drawn_in(chart, [point.step_s for point in compared.points])
    base = compared.base.timeline.makespan
    for number, point in enumerate(compared.points):
        gain = say_gain(point.utility_pct, *point.reach_pct) if number else ""
        exposed = point.exposed_communication_s
        name, network, step, saved, communication = cells[number]
        assert (name, network) == (point.cluster, point.value)
        assert (step, saved) == (say_step(point.step_s), gain)
        assert communication == say_step(exposed)
        assert table.rows[number].bar == (point.utility_pct if number else None)
        assert (whole.x[number], part.x[number]) == (scale * point.step_s, scale * exposed)
        longer, shorter = (scale * base * part / 100 for part in point.reach_pct)
        assert whole.errors[number] == pytest.approx((shorter, longer), rel=1e-12)
        assert whole.y[number] == part.y[number] == point.cluster
        assert (whole.labels[number].endswith("(baseline)")) == (number == 0)
    assert document.details["networks"].count("\n") == len(compared.points) - 2


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((), "The step takes {length} on dgx-a100."),
        ((20.0, 30.0), "perlmutter saves 30.0 % of {step} on dgx-a100."),
        ((20.0, 10.0), "hgx-h100 saves 20.0 % of {step} on dgx-a100."),
        ((-0.05, -9.0), "hgx-h100 takes as long as dgx-a100, within 0.1 % of {step}."),
        ((0.0,), "hgx-h100 takes as long as dgx-a100"),
        ((-9.0,), "dgx-a100 is fastest; the other cluster, hgx-h100, adds 9.0 % to {step}."),
        ((-9.0, -8.0), "dgx-a100 is fastest; the next fastest, perlmutter, adds 8.0 % to {step}."),
    ],
)
def test_the_headline_of_a_comparison_names_the_fastest(compared, gains, words):
    first, *rest = compared.points
    step = first.step_s
    points = [
        replace(point, utility_pct=gain, interval_pct=None, step_s=step * (1 - gain / 100))
        for point, gain in zip(rest, gains, strict=False)
    ]
    headline = replace(compared, points=(first, *points)).document().headline
    assert words.format(step=the_step(compared), length=say_step(step)) in headline


def test_changes_are_tabulated_and_drawn_one_by_one_below_the_step_as_it_is(changed):
    refused = (RefusedChange("links down", "none"),)
    document = replace(changed, refused=refused).document()
    table, cells = cells_of(document, "changes")
    chart = chart_of(document, "steps-chart")
    whole, part = chart.series
    base = changed.base.timeline.makespan
    scale = drawn_in(chart, [base, *(point.step_s for point in changed.points)])
    for number, point in enumerate(changed.points):
        gain = say_gain(point.utility_pct, *point.reach_pct)
        exposed = say_step(point.exposed_communication_s)
        start = (point.change, say_step(point.step_s), gain, exposed)
        assert tuple(cells[number][:4]) == start
        assert table.rows[number].bar == point.utility_pct
        assert whole.x[number + 1] == scale * point.step_s
        assert part.x[number + 1] == scale * point.exposed_communication_s
    assert (whole.y[0], whole.x[0], whole.errors[0]) == ("unchanged", scale * base, (0.0, 0.0))
    assert 0 < part.x[0] < whole.x[0]
    assert cells[-1] == ("links down", "", "refused", "", "none")
    assert len(cells) == len(changed.points) + 1
    assert table.foot == "exposed communication: mean over ranks"


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((9.0, 20.0), "“host x2” saves 20.0 % of {}, the most of 2 changes."),
        ((9.0,), "“compute x0.5” saves 9.0 % of {}."),
        ((-9.0, -20.0), "“host x2” costs 20.0 % of {}, the most of 2 changes."),
        ((0.04, -20.0), "“host x2” costs 20.0 % of {}, the most of 2 changes."),
        ((0.04, -0.04), "None of 2 changes saves or costs 0.1 % of {}."),
        ((0.0,), "“compute x0.5” saves or costs less than 0.1 % of {}."),
        ((-9.0,), "“compute x0.5” costs 9.0 % of {}."),
    ],
)
def test_the_headline_of_what_ifs_names_the_largest_effect(changed, gains, words):
    points = [
        replace(point, utility_pct=gain, interval_pct=None)
        for point, gain in zip(changed.points, gains, strict=False)
    ]
    headline = replace(changed, points=tuple(points)).document().headline
    assert headline == words.format(the_step(changed))
    assert NOTHING == 0.1


def test_a_random_change_says_its_draws_seed_and_spread(changed):
    drawn = replace(
        changed.points[0],
        draws=5, seed=7, draws_cut_off=2, step_p10_s=1e-3, step_p90_s=2e-3, step_worst_s=4e-3,
    )  # fmt: skip
    none_left = replace(drawn, draws=1, draws_cut_off=0, step_p90_s=None)
    latency = replace(drawn, change="scale_up.latency x2", draws=None, note="6 links")
    document = replace(changed, points=(drawn, none_left, latency)).document()
    table, cells = cells_of(document, "changes")
    assert cells[0][4].startswith(
        "5 draws with seed 7, of which 2 cut ranks off: p10 1 ms, p90 2 ms, worst 4 ms"
    )
    assert cells[1][4].startswith("1 draw with seed 7: p10 1 ms, worst 4 ms")
    assert cells[2][4] == "6 links"
    assert "medians over draws" in table.foot


def test_what_an_interval_consists_of_is_listed_in_the_details(utilities, swept):
    for report in (utilities, swept):
        covered = report.document().details["± 95 %"]
        points = [point for point in report.points if point.interval_pct]
        assert ("scatter" in covered) == any(point.scatter_pct for point in points)
        assert ("bandwidths" in covered) == any(point.prior_pct for point in points)
        assert ("kernel times" in covered) == any(p.kernels_pct for p in points)
    bare = [saving(utilities.base, 9.0, resource="compute", prediction_pct=math.pi)]
    covered = replace(utilities, points=tuple(bare)).document().details["± 95 %"]
    assert covered == "covers measured errors of such predictions"
