"""Documents of studies: front, thresholds, variances and refusals are those of the rows."""

import itertools
from copy import copy
from dataclasses import replace

import pytest

import twofold as tf
from experiments.output.document import Chart, FactList, Table, Text
from experiments.output.words import percent, say_time
from experiments.studies.explore import Chosen, Confirmed
from experiments.studies.figures import say_figure
from experiments.studies.search import Sensitivity, Threshold
from helpers.studies import links
from simulator.support.quantities import format_quantity


def study(tmp_path_factory, **fields):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWOFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return tf.study(links(**fields), cache=False)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A study of two objectives, whose points beyond 32 ms are refused."""
    return study(tmp_path_factory, steps=7, constraints=["step_s <= 32 ms"])


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return study(tmp_path_factory, steps=3, objectives={"step_s": "min"})


def rows_of(document, head):
    (table,) = (table for table in document.blocks(Table) if table.columns[0] == head)
    return table, [tuple(row.cells) for row in table.rows]


def changed(report, **fields):
    return replace(report, explored=replace(report.explored, **fields))


def found(report, **fields):
    return changed(report, found=replace(report.explored.found, **fields))


def test_the_front_is_listed_and_drawn_point_by_point(two):
    document = two.document()
    table, cells = rows_of(document, ">point")
    assert table.columns[:4] == (
        ">point", ">step_s (min)", ">scale_up.bandwidth (min)", ">against the next",
    )  # fmt: skip
    assert len(cells) == len(two.front) > 2
    for row, after, point in zip(cells, [*two.front[1:], None], two.front, strict=True):
        step, bandwidth = point.objectives["step_s"], point.objectives["scale_up.bandwidth"]
        assert row[:3] == (
            str(point.point), say_figure(step, "s"), format_quantity(bandwidth, "B/s")
        )  # fmt: skip
        if after is not None:
            longer = say_figure(after.objectives["step_s"] - step, "s")
            less = format_quantity(bandwidth - after.objectives["scale_up.bandwidth"], "B/s")
            assert row[3] == f"-{longer} for +{less}"
        assert row[-1].split(", ") == [*point.best_of, *["knee"] * point.knee] or row[-1] == ""
    assert "knee: beyond it" in table.foot
    (chart,) = document.blocks(Chart)
    feasible, front = chart.series
    assert len(feasible.x) == int(two.explored.results.feasible.sum())
    drawn = dict(zip(front.x, front.y, strict=True))
    assert list(front.x) == sorted(front.x)
    assert drawn == {
        point.objectives["step_s"]: point.objectives["scale_up.bandwidth"] for point in two.front
    }
    assert (chart.x.title, chart.y.title) == ("step_s [s]", "scale_up.bandwidth [B/s]")


def test_the_headline_gives_both_ends_of_the_front_and_the_lead_the_best_of_each(two):
    document = two.document()
    first, last = (say_figure(two.front[at].objectives["step_s"], "s") for at in (0, -1))
    assert document.headline == (
        f"{len(two.front)} of 49 points are worth choosing, with step_s from {first} to {last}."
    )
    fastest = next(line for line in document.lead if line.startswith("Least step_s: "))
    assert f"{first} (scale_up.bandwidth " in fastest
    assert f"point {two.front[0].point}: " in fastest
    alone = changed(two, front=two.explored.front[:1], best={}).document()
    assert alone.headline.startswith("1 of 49 points is worth choosing, with step_s ")


def test_refused_points_are_counted_by_reason(two):
    document = two.document()
    table, cells = rows_of(document, "|refused by")
    refused = sum(1 for why in two.explored.results.refused if why)
    assert cells == [("step_s <= 32 ms", str(refused))]
    assert table.rows[0].bar == 100.0
    assert table.rows[0].selects == "step_s <= 32 ms"
    assert document.facts["points"] == (
        f"49 by grid, {49 - refused} feasible, {len(two.front)} on the front"
    )
    (asked,) = document.blocks(FactList)
    assert list(asked.facts["constraints"]) == ["step_s <= 32 ms"]
    assert "7" in str(len(two.study.dimensions[0].levels))


def with_refusals(report, refused):
    results = copy(report.explored.results)
    results.refused = refused
    return changed(report, results=results)


def test_of_many_reasons_the_rest_is_counted_and_bars_are_their_shares(two):
    front = set(two.explored.front)
    rest = (f"r{number % 41}" for number in itertools.count())
    refused = ["" if number in front else next(rest) for number in range(49)]
    count = 49 - len(front)
    reasons = min(count, 41)
    document = with_refusals(two, refused).document()
    table, cells = rows_of(document, "|refused by")
    assert len(cells) == min(40, reasons)
    assert table.rows[0].bar == pytest.approx(100 * int(cells[0][1]) / count)
    shown = sum(int(cell) for _, cell in cells)
    assert sum(row.bar for row in table.rows) == pytest.approx(100 * shown / count)
    texts = [text.text for text in document.blocks(Text)]
    more = "and 1 other reasons: column refused_by of the results"
    assert (more in texts) == (reasons == 41)


def test_of_a_long_front_some_are_listed_evenly_with_the_best(two):
    everything = tuple(range(49))
    best = {"step_s": 40, "scale_up.bandwidth": 3}
    report = changed(with_refusals(two, [""] * 49), front=everything, best=best)
    document = report.document()
    _, cells = rows_of(document, ">point")
    listed = [int(row[0]) for row in cells]
    order = [point.point for point in report.front]
    places = sorted(order.index(point) for point in listed)
    assert {order[0], order[-1], 40, 3} <= set(listed)
    assert 20 <= len(listed) <= 22
    assert max(b - a for a, b in itertools.pairwise(places)) <= 3
    more = f"and {49 - len(listed)} more points of the front: -o json has all"
    assert more in [text.text for text in document.blocks(Text)]


def test_one_objective_has_one_best_point_drawn_over_the_numbers_of_points(one):
    document = one.document()
    best = one.front[0]
    assert document.headline.startswith(
        f"The best of 9 points has step_s {say_figure(best.objectives['step_s'], 's')}: scale_up.b"
    )
    (chart,) = document.blocks(Chart)
    points, front = chart.series
    assert sorted(points.x) == list(range(9))
    assert list(front.x) == [best.point]
    assert (chart.x.title, chart.y.title) == ("point", "step_s [s]")
    assert "hypervolume" not in document.facts
    _, cells = rows_of(document, ">point")
    assert len(cells[0]) == 5  # number, step, two dimensions, best in


@pytest.mark.parametrize(
    ("percents", "grade", "explains"), [((3.0, -4.0), "good", False), ((3.0, -6.0), "fair", True)]
)
def test_another_engine_confirms_the_front_or_makes_it_doubtful(two, percents, grade, explains):
    numbers = [point.point for point in two.front[:3]]
    again = tuple(
        Confirmed(number, 0.03, off) for number, off in zip(numbers, percents, strict=False)
    )
    broken = Confirmed(numbers[2], 0.03, 99.0, refused="deadlock")
    analytic = replace(two.study, settings=replace(two.study.settings, engine="analytic"))
    report = replace(changed(two, confirmed=(*again, broken)), study=analytic)
    document = report.document()
    most = percent(max(map(abs, percents)))
    engine = two.study.confirm
    assert f"{engine} differs by at most {most} on the front" in document.trust.text
    assert document.trust.grade == grade
    assert document.facts["confirmed by"].startswith(f"{engine}: 2 points of the front, step off")
    assert document.facts["confirmed by"].endswith(f"{most} at most")
    texts = " ".join(text.text for text in document.blocks(Text))
    assert (f"{engine} differs by more than 5 %" in texts) == explains
    table, cells = rows_of(document, ">point")
    column = table.columns.index(f">{engine}")
    assert cells[0][column] == f"{say_time(0.03)} ({percents[0]:+.2f} %)"
    assert [row[column] for row in cells[3:]] == [""] * (len(cells) - 3)
    (stat,) = (stat for stat in document.stats if "differs on the front" in stat.name)
    assert stat.value == most


@pytest.mark.parametrize(
    ("errors", "mood", "grade"),
    [
        ((2.0, -1.0), "good", "good"),
        ((2.1, -1.0), "", "good"),
        ((1.0, -5.0), "", "good"),
        ((1.0, -5.1), "bad", "poor"),
        ((None, None), None, "fair"),
        ((None, 1.0), "good", "good"),
    ],
)
def test_the_largest_error_of_a_replay_says_how_far_a_study_is_trusted(two, errors, mood, grade):
    workloads = tuple(
        {**two.workloads[0], "baseline_error_pct": error, "recorded": error is not None}
        for error in errors
    )
    document = replace(two, workloads=workloads).document()
    assert document.trust.grade == grade
    assert [doubt.cause for doubt in document.trust.doubts] == (
        [f"the replay of {two.workloads[0]['workload']} is 5 % shorter than the measured step"]
        if grade == "poor"
        else []
    )
    stats = {stat.name: stat for stat in document.stats}
    known = [error for error in errors if error is not None]
    if not known:
        assert "error of the replay" not in stats
        assert document.trust.text == "2 of 2 workloads generated"
        return
    worst = max(known, key=abs)
    assert stats["error of the replay"].mood == mood
    assert stats["error of the replay"].value == percent(worst, signed=True)
    assert f"largest error of a replay {worst:+.1f} %" in document.trust.text
    generated = len(errors) - len(known)
    assert ("workloads generated" in stats) == bool(generated)


def test_thresholds_are_listed_by_the_other_dimensions(two):
    search = replace_search(two, over="scale_up.bandwidth", loss="3 %", tolerance="2 %")
    thresholds = (
        Threshold((0,), 9e10, 0.031, 0.030),
        Threshold((3,), 7.5e10, 0.031, 0.030, at_end=True),
        Threshold((6,), None, 0.5, 0.5),
    )
    document = found(search, thresholds=thresholds).document()
    table, cells = rows_of(document, "scale_up.latency")
    latency = two.study.dimensions[1]
    names = [latency.say(latency.value(at)) for at in (0, 3, 6)]
    assert cells == [
        (names[0], "90 GB/s", "31 ms", "30 ms"),
        (names[1], "75 GB/s or less", "31 ms", "30 ms"),
        (names[2], "none", "", ""),
    ]
    assert "at most 3 % longer" in table.foot
    assert "to 2 % of the value" in table.foot
    assert document.headline == (
        "Of 49 points, the least scale_up.bandwidth that costs at most 3 % of the step."
    )


def replace_search(report, **fields):
    file = report.study.file
    search = file.search.model_copy(update=fields)
    return replace(report, study=replace(report.study, file=file.model_copy(
        update={"search": search})))  # fmt: skip


def test_shares_of_variance_are_listed_the_largest_first(two):
    index = Sensitivity(
        "step_s",
        {"scale_up.bandwidth": 0.125, "scale_up.latency": 0.5},
        {"scale_up.bandwidth": 0.25, "scale_up.latency": 0.75},
    )
    document = found(two, sensitivity=(index,)).document()
    table, cells = rows_of(document, "objective")
    assert cells == [
        ("step_s", "scale_up.latency", "50.00 %", "75.00 %"),
        ("step_s", "scale_up.bandwidth", "12.50 %", "25.00 %"),
    ]
    assert [row.bar for row in table.rows] == [75.0, 25.0]
    assert document.headline == "scale_up.latency explains 75.00 % of the variance of step_s."


def test_robust_choices_have_their_quantile_and_points_the_share_of_draws(two):
    chosen = (Chosen("step_s", "p90", 1234, 0.0305),)
    kept = tuple(n / 10 for n in range(len(two.front)))
    document = changed(two, chosen=chosen, kept=kept).document()
    _, cells = rows_of(document, "least or most of")
    assert cells == [("step_s", "p90", say_figure(0.0305, "s"), "1,234")]
    table, cells = rows_of(document, ">point")
    column = table.columns.index(">kept")
    shares = dict(zip(two.explored.front, kept, strict=True))
    assert [row[column] for row in cells] == [
        percent(100 * shares[point.point]) for point in two.front
    ]
    assert "kept: share of" in table.foot
