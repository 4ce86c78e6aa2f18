"""Charts on paper: every value of a description is drawn where its axis has it, and labels fit."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from experiments.output.document import Axis, Chart, Document, Section, Series
from experiments.output.figure import draw, figure
from simulator.support.errors import OutputError


def drawn(*charts):
    return figure(Document("t", "h", sections=(Section("s", "S", charts),)))


def bar_chart(*series, **options):
    options = {"x": Axis("time [ms]"), "y": Axis(kind="names"), **options}
    return Chart("c", "A title", series, **options)


def bars_of(axes):
    """Left end, width, middle and height of bars, in the order in which they were drawn."""
    return [
        (bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2, bar.get_height())
        for bar in axes.patches
    ]


def test_bars_are_as_long_as_their_values_in_the_row_of_their_name():
    series = Series(
        "bars", [3.0, -2.0, 1.0], ["a", "b", "c"], "s", colour=["blue", "orange", "grey"]
    )
    marks = Series("marks", [4.0], ["c"], "most", colour="orange")
    (axes,) = drawn(bar_chart(series, marks)).axes
    assert [bar[:3] for bar in bars_of(axes)] == [
        (0.0, 3.0, pytest.approx(0)), (0.0, -2.0, pytest.approx(1)), (0.0, 1.0, pytest.approx(2)),
    ]  # fmt: skip
    colours = [to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert len(set(colours)) == 3
    (mark,) = axes.lines
    assert (mark.get_xdata().tolist(), mark.get_ydata().tolist()) == ([4.0], [2.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    low, high = axes.get_xlim()
    assert low < -2.0
    assert high == pytest.approx(1.08 * 4.0)
    top, bottom = axes.get_ylim()
    assert top > 2 > 0 > bottom
    assert axes.get_xlabel() == "time [ms]"


def test_grouped_bars_are_beside_each_other_and_fill_one_rows_height():
    series = [Series("bars", [1.0, 2.0], ["a", "b"], name) for name in "xyz"]
    (alone,) = drawn(bar_chart(series[0])).axes
    whole = bars_of(alone)[0][3]
    (axes,) = drawn(bar_chart(*series, arranged="group")).axes
    rows = np.array([bar[2] for bar in bars_of(axes)]).reshape(3, 2)
    heights = [bar[3] for bar in bars_of(axes)]
    assert heights == pytest.approx([whole / 3] * 6)
    assert np.diff(rows, axis=0) == pytest.approx(np.full((2, 2), whole / 3))
    assert rows.mean(axis=0) == pytest.approx([0, 1])
    (over,) = drawn(bar_chart(*series)).axes
    assert [bar[2] for bar in bars_of(over)] == pytest.approx([0, 1] * 3)


def test_bars_with_starts_begin_there_and_labels_stand_behind_all_of_a_row():
    series = Series(
        "bars", [2.0, 1.0], ["a", "b"], starts=[1.0, 5.0], labels=["p", "q"], hollow=True
    )
    late = Series("bars", [4.0], ["a"], errors=[(0.5, 0.5)])
    whole = drawn(bar_chart(series, late))
    (axes,) = whole.axes
    assert [bar[:2] for bar in bars_of(axes)] == [(1.0, 2.0), (5.0, 1.0), (0.0, 4.0)]
    labels = {text.get_text(): text.xy for text in axes.texts}
    assert labels == {"p": (4.5, 0), "q": (6.0, 1)}
    assert axes.get_xlim()[1] == pytest.approx(1.35 * 6.0)
    assert whole.get_figwidth() == pytest.approx(2 * drawn(bar_chart(late)).get_figwidth())
    assert not axes.patches[0].get_fill() or axes.patches[0].get_facecolor()[3] == 0


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_a_figure_of_bars_is_higher_the_more_rows_it_has(count):
    names = [f"n{n}" for n in range(count)]
    long = [f"{name} of many words that take two lines or three in a column" for name in names]
    high = [
        drawn(bar_chart(Series("bars", [1.0] * count, each))).get_figheight()
        for each in (names, long)
    ]
    assert high[0] == pytest.approx(0.95 + 0.34 * count)
    assert high[1] > high[0] or count == 1


def test_long_names_are_cut_in_the_middle_and_broken():
    name = "b" * 40 + "e" * 40
    (axes,) = drawn(bar_chart(Series("bars", [1.0, 1.0], [name, "$x$"]))).axes
    first, second = (label.get_text() for label in axes.get_yticklabels())
    shown = first.replace("\n", "")
    assert (len(shown), shown.count("…")) == (60, 1)
    assert shown.startswith("b" * 30)
    assert shown.endswith("e" * 29)
    assert max(map(len, first.split("\n"))) <= 26
    assert second == r"\$x\$"


def line_chart(*series, x=None, y=None, **options):
    x, y = x or Axis("factor", "log2"), y or Axis("step [ms]", zero=True)
    return Chart("c", "A title", series, x, y, **options)


def test_lines_bands_and_points_are_drawn_through_their_values():
    line = Series(
        "line", [1, 2, 4], [3.0, 2.0, 1.0], "line", errors=[(0.1, 0.1), (0.2, 0.2), (0.3, 0.3)]
    )
    points = Series("points", [1, 4], [3.5, 1.5], "points", colour="green")
    rule = Series("rule", [2, 2], [0.0, 3.0], "rule", dashed=True)
    band = Series("band", [1, 4], [3.0, 1.0], "band", errors=[(0.5, 0.5), (0.25, 0.25)])
    (axes,) = drawn(line_chart(line, points, rule, band)).axes
    by_name = {each.get_label(): each for each in axes.lines}
    for series in (line, points, rule):
        xy = by_name[series.name].get_xydata()
        assert xy[:, 0].tolist() == list(series.x)
        assert xy[:, 1].tolist() == list(series.y)
    assert by_name["points"].get_linestyle() == "None"
    assert by_name["rule"].get_linestyle() == "--"
    assert [by_name[name].get_marker() for name in ("line", "points", "rule")] == ["o", "o", ""]
    (filled,) = (each for each in axes.collections if each.get_label() == "band")
    ends = {tuple(point) for path in filled.get_paths() for point in path.vertices.tolist()}
    assert {(1.0, 2.5), (1.0, 3.5), (4.0, 0.75), (4.0, 1.25)} <= ends
    assert axes.get_xscale() == "log"
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > 3.5
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("factor", "step [ms]")


def test_a_line_of_many_points_has_no_marks():
    for count, marker in ((100, "o"), (101, "")):
        series = Series("line", list(range(1, count + 1)), [1.0] * count, "s")
        (axes,) = drawn(line_chart(series, x=Axis())).axes
        (line,) = (each for each in axes.lines if each.get_label() == "s")
        assert line.get_marker() == marker


def test_upright_bars_are_stacked_and_a_second_axis_is_on_the_right():
    low = Series("bars", [0, 1], [1.0, 2.0], "low", widths=[0.5, 0.25])
    high = Series("bars", [1, 0], [3.0, 4.0], "high", colour="orange")
    speed = Series("line", [0, 1], [100.0, 200.0], "speed", right=True)
    whole = drawn(line_chart(low, high, speed, x=Axis(), right=Axis("GB/s")))
    axes, right = whole.axes
    boxes = [(bar.get_y(), bar.get_height(), bar.get_width()) for bar in axes.patches]
    assert boxes == [(0.0, 1.0, 0.5), (0.0, 2.0, 0.25), (2.0, 3.0, 0.8), (1.0, 4.0, 0.8)]
    assert [line.get_label() for line in right.lines] == ["speed"]
    assert right.get_ylabel() == "GB/s"


def test_labels_and_ticks_keep_a_seventh_of_the_axis_apart_and_that_of_one_is_among_them():
    factors = [2.0**power for power in np.arange(-3, 3.01, 0.25)]
    labels = [f"{factor:g}" for factor in factors]
    series = Series(
        "line", factors, [1.0] * len(factors), labels=labels, errors=[(0.5, 0.5)] * len(factors)
    )
    axis = Axis("factor", "log2", list(zip(factors, labels, strict=True)))
    (axes,) = drawn(line_chart(series, x=axis)).axes
    written = sorted(text.xy[0] for text in axes.texts)
    assert 1.0 in written
    assert np.diff(np.log2(written)).min() >= 6 / 7
    assert {text.xy[1] for text in axes.texts} == {1.5}
    ticks = sorted(axes.get_xticks())
    assert ticks == written
    assert len(ticks) >= 6
    bare = Series("line", [1.0, 2.0], [1.0, 2.0], labels=["", "b"])
    (axes,) = drawn(line_chart(bare)).axes
    assert [text.get_text() for text in axes.texts] == ["b"]


def test_axes_have_their_span_and_scale():
    series = Series("line", [1.0, 10.0], [1.0, 100.0])
    (axes,) = drawn(line_chart(series, x=Axis(span=(0.0, 20.0)), y=Axis(kind="log"))).axes
    assert axes.get_xlim() == (0.0, 20.0)
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")


@pytest.mark.parametrize(("count", "down", "across"), [(2, 1, 2), (3, 1, 3), (4, 2, 3), (7, 3, 3)])
def test_several_charts_are_panels_side_by_side(count, down, across):
    charts = [bar_chart(Series("bars", [n + 1.0], ["a"], f"s{n % 2}")) for n in range(count)]
    whole = drawn(*charts)
    assert len(whole.axes) == down * across
    shown = [axes for axes in whole.axes if axes.axison]
    assert [axes.patches[0].get_width() for axes in shown] == [n + 1.0 for n in range(count)]
    assert [axes.get_title() for axes in shown] == ["A title"] * count
    (legend,) = whole.legends
    assert [text.get_text() for text in legend.get_texts()] == ["s0", "s1"]
    assert whole.get_figwidth() == pytest.approx(max(3.5, 7.0 * across / 3))
    assert whole.get_figheight() == pytest.approx(0.5 + 2.1 * down)


def test_what_is_for_pages_alone_is_not_drawn_and_a_legend_may_be_left_out():
    series = Series("bars", [1.0], ["a"], "s")
    with pytest.raises(OutputError, match="no figure"):
        drawn(bar_chart(series, paper=False))
    assert len(drawn(bar_chart(series), bar_chart(series, paper=False)).axes) == 1
    assert len(drawn(bar_chart(series)).legends) == 1
    assert drawn(bar_chart(series, legend=False)).legends == []


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_equal_figures_are_equal_files(tmp_path, ending):
    document = Document("t", "h", sections=(
        Section("s", "S", [bar_chart(Series("bars", [1.0], ["a"]))]),
    ))  # fmt: skip
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        draw(document, file)
    assert files[0].read_bytes() == files[1].read_bytes() != b""
