"""Documents of a step: held to their rows, parts that add up, and what makes them doubtful."""

import json
import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace

import pytest

import twofold as tf
from experiments.documents import step as common
from experiments.documents.steps import signed_chart
from experiments.output.document import Bars, Chart, Text
from experiments.output.words import percent, say_resource, say_step, say_time
from experiments.questions.diff import ChangeOfA
from helpers.documents import table_of
from helpers.experiments_jobs import write_job
from helpers.nsys_files import simple
from helpers.places import SAMPLES
from simulator.analysis.attribution import PathPart, Stretch
from simulator.support.quantities import format_quantity
from traces.core.loaded import ODD

GPU = SAMPLES / "gpu-dp2-tp4"


@pytest.fixture(scope="module")
def replayed():
    return tf.replay(GPU, "dgx-a100", nodes=2)


@pytest.fixture(scope="module")
def explained():
    return tf.explain(GPU, "dgx-a100", nodes=2)


@pytest.fixture(scope="module")
def saved():
    return tf.explain(GPU, "dgx-a100", utility="scale_up.bandwidth", nodes=2)


@pytest.fixture(scope="module")
def differing():
    return tf.diff(GPU, SAMPLES / "gloo-ddp-4", "dgx-a100", cluster_b="dgx-a100")


def seconds_in(cells, head):
    """Numbers of a column whose head has their unit, in seconds."""
    unit = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[re.search(r"\[(\w+)\]", head)[1]]
    return [float(cell) * unit for cell in cells], 0.5001e-3 * unit


def test_a_replay_is_tabulated_rank_by_rank(replayed):
    table, cells = table_of(replayed.document(), ">rank")
    fields = (
        *("measured_start_s", "measured_end_s", "simulated_end_s", "error_pct", "compute_s"),
        *("communication_s", "exposed_communication_s", "exposed_waiting_s"),
    )
    assert [row[0] for row in cells] == [str(rank.rank) for rank in replayed.ranks]
    for column, name in enumerate(fields, 1):
        shown, true = [row[column] for row in cells], [getattr(r, name) for r in replayed.ranks]
        if name == "error_pct":
            assert shown == [percent(value, signed=True) for value in true]
        else:
            seconds, digit = seconds_in(shown, table.columns[column])
            assert seconds == pytest.approx(true, abs=digit)
    assert 1 <= max(float(row[3]) for row in cells) < 1000
    unmeasured = replace(replayed.ranks[0], measured_start_s=None, error_pct=None)
    _, (first, *_) = table_of(replace(replayed, ranks=(unmeasured,)).document(), ">rank")
    assert (first[1], first[4]) == ("", "")


@pytest.mark.parametrize(
    ("times", "words", "mood", "grade"),
    [
        (1.0, "as long as the measured step.", "good", "good"),
        (1.015, "1.50 % longer than the measured step.", "good", "good"),
        (0.97, "3.00 % shorter than the measured step.", "", "fair"),
        (1.06, "6.00 % longer than the measured step.", "bad", "poor"),
        (0.94, "6.00 % shorter than the measured step.", "bad", "poor"),
    ],
)
def test_a_replay_says_how_far_it_is_off_and_is_trusted_by_that(
    replayed, times, words, mood, grade
):
    base = replayed.base
    loaded = replace(base.loaded, measured_step=base.replayed_step / times)
    document = replace(replayed, base=replace(base, loaded=loaded)).document()
    assert document.headline == f"The replay takes {say_time(base.replayed_step)}, {words}"
    (stat,) = (each for each in document.stats if each.name == "error of the replay")
    assert (stat.value, stat.mood) == (percent(100 * (times - 1), signed=True), mood)
    assert document.trust.grade == grade
    assert f"replay {100 * (times - 1):+.1f} %" in document.trust.text
    longer = [doubt.cause for doubt in document.warning if "than the measured step" in doubt.cause]
    assert bool(longer) == (grade == "poor")
    if longer:
        assert f"{abs(100 * (times - 1)):.0f} % {words.split()[2]}" in longer[0]


def test_a_step_that_was_not_measured_is_not_compared(replayed):
    loaded = replace(replayed.base.loaded, measured_step=float("nan"))
    document = replace(replayed, base=replace(replayed.base, loaded=loaded)).document()
    assert document.headline.endswith("There is no measured step to compare it with.")
    assert document.trust.grade == "fair"
    assert "no measured step" in document.trust.text
    assert "measured step" not in [stat.name for stat in document.stats]


def covered(replayed, **changes):
    coverage = replace(replayed.base.loaded.coverage, **changes)
    return replace(replayed.base, loaded=replace(replayed.base.loaded, coverage=coverage))


def causes(base):
    return [doubt.cause for doubt in common.trust(base).doubts]


def test_an_export_without_calls_of_the_host_is_doubted(tmp_path):
    path = simple(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    warning = map(str, tf.utility(path, "dgx-a100", resources=["compute"]).document().warning)
    assert any(doubt.startswith("no launch of a kernel was recorded") for doubt in warning)


def test_what_was_not_recorded_or_is_of_another_run_makes_a_step_doubtful(replayed):
    ranks = replayed.base.loaded.coverage.ranks
    plain = set(causes(replayed.base))

    def new(**changes):
        return sorted(set(causes(covered(replayed, **changes))) - plain)

    assert new(ranks=ranks[:3]) == ["only 3 of 8 ranks were recorded"]
    assert new(notes=[f"9 launches have no kernel; {ODD}"]) == [f"9 launches have no kernel; {ODD}"]
    assert new(launches_paired=0)[0].startswith("no launch of a kernel was recorded")
    assert new(launches_paired=0, kernels=0) == new(launches_paired=0, starts={}) == []
    assert new(clock_offset={5: -1.5, 2: 0.5}) == []
    (apart,) = new(clock_offset={5: -1.5, 2: 0.6})
    assert apart.startswith("rank 2 recorded its calls 2 s after rank 5")
    (apart,) = new(clock_offset={3: 7.0})
    assert apart.startswith("rank 3 recorded its calls 7 s after rank 0")
    assert new(ranks=()) == ["only 0 of 8 ranks were recorded"]


def test_coverage_is_counted_in_the_line_and_on_the_page(replayed):
    coverage = covered(
        replayed,
        kernels=2000,
        launches_paired=500,
        collectives=1000,
        collectives_matched=250,
        sizes_known=125,
        starts={"launch": 3, "unexplained": 1},
    ).loaded.coverage
    parts = common.coverage_parts(coverage)
    assert parts == [
        "8 of 8 ranks",
        "2,000 kernels, 25 % with their launch recorded",
        "75 % of starts explained",
        "250 of 1,000 collectives matched",
        "sizes known for 12.5 %",
    ]
    stats = {stat.name: stat.value for stat in common.coverage_stats(coverage)}
    assert stats == {
        "ranks in the trace": "8 of 8",
        "starts explained": "75 %",
        "collectives matched": "25 %",
        "sizes known": "12.5 %",
    }
    none = replace(coverage, starts={}, collectives=0)
    assert common.coverage_parts(none) == ["8 of 8 ranks", "2,000 kernels"]
    assert len(common.coverage_stats(none)) == 1


def test_an_explained_step_is_drawn_in_parts_that_add_up_to_it(explained):
    document = explained.document()
    step = explained.base.timeline.makespan
    by_use, in_detail, mean = document.blocks(Bars)
    for bars in (by_use, in_detail, mean):
        assert sum(bars.parts.values()) == pytest.approx(step)
    spent = defaultdict(float)
    for part in explained.parts:
        spent[part.what] += part.seconds
    assert by_use.parts == pytest.approx(spent)
    assert mean.parts == explained.mean
    (chart,) = document.blocks(Chart)
    (bars,) = chart.series
    assert sum(bars.x) == pytest.approx(step * {"ms": 1e3, "us": 1e6}[chart.x.title[-3:-1]])
    first = explained.parts[0]
    share = 100 * first.seconds / step
    path = f"critical path of the {say_step(step)} step"
    assert document.headline.startswith(f"The largest item on the {path} is kernel ")
    assert first.what == "compute"
    assert document.headline.endswith(f": {share:.0f} %.")


def test_many_names_of_a_use_are_drawn_as_one_and_their_times_kept(explained):
    def bars_of(count):
        parts = tuple(PathPart("compute", f"k{n}", 1.0 + count - n) for n in range(count))
        _, detail, _ = replace(explained, parts=parts).document().blocks(Bars)
        assert sum(detail.parts.values()) == pytest.approx(sum(part.seconds for part in parts))
        return list(detail.parts)

    assert bars_of(7) == [f"compute · k{n}" for n in range(7)]
    assert bars_of(8) == [*(f"compute · k{n}" for n in range(6)), "compute · 2 others"]


def test_names_that_are_shortened_alike_are_drawn_apart(explained):
    names = [f"moe_gemm<{'x' * 40}{middle}{'y' * 40}>" for middle in "ab"]
    parts = [
        PathPart("compute", name, seconds) for name, seconds in zip(names, (2, 1), strict=True)
    ]
    _, detail, _ = replace(explained, parts=tuple(parts)).document().blocks(Bars)
    first, second = detail.parts
    assert second == f"{first} (2)"
    assert list(detail.parts.values()) == [2.0, 1.0]


def test_the_longest_stretches_are_listed_in_order_of_time(explained):
    path = tuple(
        Stretch(n % 3, "stream 7", "compute", f"k{n}", 0.1 * n, 1e-3 * (1 + (n * 7) % 25), n)
        for n in range(25)
    )
    table, cells = table_of(replace(explained, stretches=path).document(), ">start")
    longest = sorted(path, key=lambda each: each.duration_s)[5:]
    expected = sorted(longest, key=lambda each: each.start_s)
    assert [row[5] for row in cells] == [each.name for each in expected]
    for column, name in ((0, "start_s"), (1, "duration_s")):
        seconds, digit = seconds_in([row[column] for row in cells], table.columns[column])
        assert seconds == pytest.approx([getattr(each, name) for each in expected], abs=digit)
    assert [(row[2], row[6]) for row in cells] == [(str(e.rank), str(e.count)) for e in expected]
    assert table.foot.startswith("the 20 longest of 25 segments")
    few, _ = table_of(replace(explained, stretches=path[:20]).document(), ">start")
    assert (few.foot, len(few.rows)) == ("", 20)


@pytest.mark.parametrize("count", [1, 12, 13, 30])
def test_bars_of_parts_are_the_largest_first_and_the_rest_as_one(count):
    parts = [(f"p{n}", (-1) ** n * 1e-3 * (n + 1)) for n in range(count)]
    chart = signed_chart("a", "A", [*parts, ("none", 0.0)], "saved")
    (bars,) = chart.series
    shown = min(count, 12)
    ordered = sorted(parts, key=lambda part: -abs(part[1]))
    assert list(bars.y[:shown]) == [name for name, _ in ordered[:shown]]
    assert sum(bars.x) == pytest.approx(1e3 * sum(seconds for _, seconds in parts))
    assert list(bars.colour) == ["blue" if x > 0 else "orange" for x in bars.x]
    assert list(bars.y[shown:]) == [f"{count - 12} others"] * (count > 12)
    assert chart.x.title == "saved [ms]"


def test_a_utility_taken_apart_has_tables_that_each_add_up_to_it(saved):
    document = saved.document()
    whole = saved.saved
    keys = {"by cause": "by_cause", ">by rank": "by_rank"}
    for begins, name in keys.items():
        table, cells = table_of(document, begins)
        *rows, total = table.rows
        parts = [part for part in whole[name] if part.saved_s]
        assert sum(row.bar for row in rows) == pytest.approx(whole["utility_pct"])
        assert total.cells[-1] == percent(whole["utility_pct"])
        assert total.cells[-2] == say_time(whole["step_s"] - whole["changed_step_s"])
        assert len(rows) == (len(parts) if len(parts) <= 17 else 17)
        for row, part in zip(cells, parts[:16], strict=False):
            assert tuple(row[-2:]) == (say_time(part.saved_s), percent(part.utility_pct))
    assert percent(whole["utility_pct"]) in document.headline
    assert document.facts["changed step"] == say_time(whole["changed_step_s"])


@pytest.mark.parametrize("count", [16, 17, 18])
def test_a_long_list_of_parts_ends_in_the_rest_of_them(saved, count):
    ranks = [replace(saved.saved["by_rank"][0], name=str(rank)) for rank in range(count)]
    parts = [
        replace(part, saved_s=1e-3 * (n + 1), utility_pct=n + 1.0) for n, part in enumerate(ranks)
    ]
    report = replace(saved, saved={**saved.saved, "by_rank": parts})
    table, cells = table_of(report.document(), ">by rank")
    *rows, _ = table.rows
    assert sum(row.bar for row in rows) == count * (count + 1) / 2
    assert len(rows) == min(count, 17)
    if count == 18:
        assert cells[16] == ("2 others", "35 ms", "35.00 %")


def test_why_a_utility_is_what_it_is_names_what_saves_and_what_offsets_it(saved):
    gain, *_ = saved.saved["by_cause"]

    def why(*parts):
        rows = [
            replace(gain, name=name, cause=cause, saved_s=1e-3 * points, utility_pct=points)
            for name, cause, points in parts
        ]
        return replace(saved, saved={**saved.saved, "by_cause": rows}).document().cause

    up, out = "scale_up bandwidth", "scale_out bandwidth"
    largest = f"The largest part comes from a, limited by {say_resource(up)}: 9.00 %."
    assert why(("a", up, 9.0), ("b", out, 3.0)) == largest
    assert why(("a", up, 9.0), ("b", out, -8.0)) == largest
    assert why(("a", up, 9.0), ("a", out, -1.0)) == largest
    offset = why(("a", up, 10.0), ("a", out, -2.0))
    assert offset.startswith(f"a spends 10.00 % less on {say_resource(up)}, but 2.00 % more on ")
    longer = why(("a", up, 3.0), ("b", out, -9.0))
    assert longer == f"The largest part comes from b, limited by {say_resource(out)}: -9.00 %."
    assert why(("", "", 9.0)) == f"The largest part comes from {gain.what}: 9.00 %."
    assert why() == ""


def test_two_steps_are_tabulated_use_by_use_and_class_by_class(differing):
    document = differing.document()
    for run in differing.runs:
        table, cells = table_of(document, f"{run}, mean rank")
        uses = {row["what"]: row for row in differing.uses(run)}
        *rows, total = zip(cells, table.rows, strict=True)
        step = sum(row["a_adds_s"] for row in uses.values())
        for (name, a, b, longer, _), row in rows:
            for cell, head, key in ((a, 1, "a_adds_s"), (b, 2, "b_adds_s")):
                (seconds,), digit = seconds_in([cell], table.columns[head])
                assert seconds == pytest.approx(uses[name][key], abs=digit)
            added = uses[name]["difference_s"]
            assert longer.removeprefix("+") == say_time(added)
            assert longer.startswith("+") == (added > 0)
            assert row.bar == pytest.approx(100 * added / step)
        left_out = [uses[name] for name in uses.keys() - {cells[0] for cells, _ in rows}]
        assert all(max(row["a_adds_s"], row["b_adds_s"]) < 1e-6 * step for row in left_out)
        assert total[0][0] == "total"
        assert total[1].bar == pytest.approx(sum(row.bar for _, row in rows), abs=1e-4)
    _, cells = table_of(document, "what")
    run = differing.runs[0]
    least = 1e-7 * differing.a.step
    parts = [p for p in differing.of_run(run) if p.name and abs(p.difference_s) > least]
    assert parts
    for row, part in zip(cells, parts[:16], strict=False):
        assert (row[0], row[2], row[3]) == (part.what, f"{part.a_count:,}", f"{part.b_count:,}")
        assert (row[4], row[5]) == (say_time(part.a_lasts_s), say_time(part.b_lasts_s))
        assert row[7] == percent(part.difference_pct, signed=True)


def test_changes_are_tabulated_each_alone_and_all_together(differing):
    change = ChangeOfA("compute x2", 1.0, 0.25, 50.0, "all kernels")
    every = replace(change, change="all")
    document = replace(differing, changes=(change,), together=every).document()
    _, cells = table_of(document, "|what if on A")
    assert [row[0] for row in cells] == ["compute x2", "all together"]


def test_classes_beyond_the_first_are_one_row_and_small_ones_none(differing):
    run = differing.runs[0]
    part = replace(differing.of_run(run)[0], name="n", a_lasts_s=1e-3, b_lasts_s=2e-3)

    def listed(count, seconds=1e-3):
        parts = tuple(
            replace(part, name=f"n{n}", difference_s=seconds, difference_pct=1.0)
            for n in range(count)
        )
        document = replace(differing, parts=parts, together=None, changes=()).document()
        if not seconds:
            return [text.text for text in document.blocks(Text)]
        return table_of(document, "what")[1]

    assert [row[1] for row in listed(17)] == [f"n{n}" for n in range(17)]
    rest = listed(18)[16]
    assert (rest[0], rest[6], rest[7]) == ("2 others", "+2 ms", "+2.00 %")
    assert "No class of ops differs." in listed(3, 0.0)


def test_the_headline_of_a_difference_says_which_is_longer_and_by_how_much(differing):
    a, b = differing.a, differing.b

    def headline(times):
        measured = replace(a.measured, step=a.step * times)
        return replace(differing, b=replace(b, measured=measured)).document().headline

    step = say_step(a.step)
    longer = f"B takes {say_step(1.25 * a.step)}, 25.00 % longer than A's {step}."
    assert headline(1.25) == longer
    assert headline(0.5) == f"B takes {say_step(0.5 * a.step)}, 50.00 % shorter than A's {step}."
    assert headline(1.0) == headline(1 + 1e-8) == f"B takes as long as A, {step}."


def test_memory_is_tabulated_part_by_part_and_adds_up():
    cluster = tf.load_cluster("dgx-a100")
    plan = tf.plan_on(
        cluster,
        model="llama-3.1-8b",
        parallelism=tf.Parallelism(tp=1, pp=8),
        run=tf.Training(sequence=2048, micro_batch=1, global_batch=8),
    )
    report = tf.memory(plan)
    document = report.document()
    table, cells = table_of(document, "memory")
    heads = [head.removeprefix(">stage ") for head in table.columns[1:]]
    most = report.fullest.stage
    assert heads == [str(number) for number in sorted({0, 1, most, 7})]
    for column, number in enumerate(map(int, heads), 1):
        stage = report.stages[number]
        shown = {row[0].replace(" ", "_"): row[column] for row in cells}
        assert shown.pop("total") == format_quantity(stage.total, "B")
        reserved = shown.pop("max_memory_reserved", None)
        assert reserved in (None, format_quantity(stage.reserved, "B"))
        assert shown == {
            name: format_quantity(size, "B")
            for name, size in stage.parts.items()
            if any(report.stages[n].parts[name] for n in map(int, heads))
        }
    largest = max(report.fullest.parts, key=report.fullest.parts.get)
    share = 100 * report.fullest.parts[largest] / report.fullest.total
    assert document.cause == f"Largest part: {largest.replace('_', ' ')}, {percent(share)}."
    needed, room = (format_quantity(size, "B") for size in (report.fullest.total, plan.memory.size))
    word = "fits" if report.fits else "does not fit"
    assert document.headline == (
        f"The step {word}: a rank of stage {most} needs {needed} and has {room}."
    )
    alone, rows = table_of(replace(report, stages=report.stages[:1]).document(), "memory")
    assert alone.columns == ("memory", ">bytes", ">share")
    first = report.stages[0]
    assert [row[2] for row in rows if row[0] == "weights"] == [
        percent(100 * first.parts["weights"] / first.total)
    ]


@pytest.mark.parametrize(("tokens", "doubted"), [(131072, False), (131073, True)])
def test_a_sequence_longer_than_the_model_allows_is_doubted(tmp_path, tokens, doubted):
    file = tmp_path / "plan.yaml"
    file.write_text(
        "model: llama-3.1-8b\nparallelism: {tp: 8}\n"
        f"training: {{micro_batch: 1, global_batch: 1, sequence: {tokens}}}\n"
        "accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s}\n"
    )
    causes = [doubt.cause for doubt in tf.replay(file, "hgx-h100").document().trust.doubts]
    assert any("takes 131072 at most: frameworks refuse it" in cause for cause in causes) is doubted


@pytest.mark.parametrize("second", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
def test_ranks_on_unlike_accelerators_are_doubted(tmp_path, second):
    for file in write_job(tmp_path, 2).iterdir():
        table = json.loads(file.read_text())
        name = second if table["distributedInfo"]["rank"] else "NVIDIA A100-SXM4-80GB"
        file.write_text(json.dumps(table | {"deviceProperties": [{"id": 0, "name": name}]}))
    causes = [doubt.cause for doubt in tf.replay(tmp_path, "dgx-a100").document().trust.doubts]
    unlike = f"ranks ran on unlike accelerators: NVIDIA A100-SXM4-80GB, {second}"
    assert (unlike in causes) is (second != "NVIDIA A100-SXM4-80GB")
