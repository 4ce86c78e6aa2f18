"""Documents about jobs that share a cluster: held to the numbers of their reports."""

from types import SimpleNamespace as Of

import numpy as np
import pytest

from experiments.documents import sharing as documents
from helpers.documents import chart_of, table_of


def job(name, slow_down, alone=1e-3, **fields):
    usual = {
        "job": name, "slow_down": slow_down, "alone_step_s": alone, "step_s": slow_down * alone,
        "worst_step_s": 2 * slow_down * alone, "replayed_step_s": 0.9 * alone, "ranks": 1024,
        "nodes": 128, "meets": slow_down > 1, "trace": f"/a/{name}.json",
        "baseline_error_pct": 1.0, "steps_averaged": 10, "steps_left_out": 3,
    }  # fmt: skip
    return Of(**{**usual, **fields})


def part(name, utilisation, lost):
    return {"job": name, "utilisation": utilisation, "lost_s": lost}


def link(name, *parts, resource="scale_out", bandwidth=25e9):
    return Of(
        link=name, resource=resource, bandwidth=bandwidth, jobs=parts,
        utilisation=sum(each["utilisation"] for each in parts),
        lost_s=sum(each["lost_s"] for each in parts),
    )  # fmt: skip


def utility(resource, pct, *jobs, **fields):
    usual = {
        "resource": resource, "utility_pct": pct, "baseline": "1", "changed": "2", "note": "",
        "jobs": [{"utility_pct": own, "alone_utility_pct": alone} for own, alone in jobs],
    }  # fmt: skip
    return Of(**{**usual, **fields})


def ran(steps):
    """A job whose steps were simulated one by one."""
    length = np.linspace(1e-3, 2e-3, steps)
    begin = np.concatenate([[0.0], np.cumsum(length)[:-1]])
    return Of(done=Of(begin=begin, length=length), alone=Of(makespan=1e-3))


SHARED = (
    link("a", part("x", 0.5, 1e-4), part("y", 0.25, 2e-4)),
    link("b", part("x", 0.5, 1e-4), part("y", 0.25, 2e-4)),
    link("c", part("x", 0.9, 5e-4), resource="pcie"),
)


def report(*jobs, **fields):
    jobs = jobs or (job("x", 1.25), job("y", 1.5, baseline_error_pct=-3.0))
    loaded = [
        Of(trace=each.trace, coverage=Of(typical_of=(), step=str(at)))
        for at, each in enumerate(jobs)
    ]
    settings = Of(engine="flow", collective_cost="model", what_ifs=())
    usual = {
        "jobs": jobs, "lost_pct": 12.5, "cluster": Of(name="c"), "links": SHARED, "utilities": (),
        "sharing": Of(jobs=[ran(5) for _ in jobs]), "placed": [Of(name=each.job) for each in jobs],
        "seating": Of(ranks=4096, nodes=512, placement="compact"), "options": {"seed": 7},
        "warnings": (), "faults": (), "together": (), "factor": 2.0,
        "bases": [Of(settings=settings, notes=(), loaded=each) for each in loaded],
    }  # fmt: skip
    return Of(**{**usual, **fields})


def test_jobs_are_tabulated_and_drawn_alone_and_together():
    document = documents.share(report())
    assert document.headline == (
        "Sharing c costs 12.50 % of the jobs' time. y loses most: its step takes 50.00 % longer"
        " than when it runs alone."
    )
    table, cells = table_of(document, "job")
    assert cells[0] == ("x", "1,024", "128", "900 us", "1 ms", "1.25 ms", "2.5 ms", "1.250x")
    assert [row.bar for row in table.rows] == [-25.0, -50.0]
    assert [row.note for row in table.rows] == ["", ""]
    chart = chart_of(document, "jobs-chart")
    alone, together, worst = chart.series
    assert chart.x.title == "step time [ms]"
    assert (list(alone.x), list(together.x), list(worst.x)) == (
        pytest.approx([1.0, 1.0]), pytest.approx([1.25, 1.5]), pytest.approx([2.5, 3.0]),
    )  # fmt: skip
    assert list(worst.labels) == ["1.25x", "1.5x"]
    stats = {stat.name: stat.value for stat in document.stats}
    assert stats["slowed down most"] == "1.500x"
    assert stats["error of the replay, y.json"] == "-3.00 %"
    assert document.lead == ("2 jobs on c: 2,048 of 4,096 ranks on 512 nodes, compact.",)


def test_jobs_that_share_nothing_say_so():
    apart = documents.share(report(job("x", 1.0), job("y", 1.0), links=()))
    assert apart.headline == "No two of these jobs share a link of c."
    assert apart.cause == ""
    assert [row.note for row in table_of(apart, "job")[0].rows] == ["shares no link"] * 2
    assert not any(section.anchor == "links" for section in apart.sections)
    one = documents.share(report(job("x", 1.5), job("y", 1.0)))
    assert one.headline.startswith("Sharing c costs")


def test_links_that_the_same_jobs_use_alike_are_one_row_the_most_lost_first():
    document = documents.share(report())
    _, cells = table_of(document, "|link")
    assert cells == [
        ["a and 1 similar", "scale_out", "25 GB/s", "75.0 %", "600 us",
         "x (50.0 %, lost 200 us), y (25.0 %, lost 400 us)"],
        ["c", "pcie", "25 GB/s", "90.0 %", "500 us", "x (90.0 %, lost 500 us)"],
    ]  # fmt: skip
    assert document.cause == "Most of the loss is on 2 similar scale-out links, such as a."
    alone = report(links=SHARED[2:])
    assert documents.share(alone).cause == "Most of the loss is on c (PCIe)."
    idle = report(links=(link("d", part("x", 0.5, 0.0)),))
    assert documents.share(idle).cause == ""
    assert table_of(documents.share(idle), "|link")[1][0][4:] == ["", "x (50.0 %)"]


@pytest.mark.parametrize(
    ("errors", "warnings", "grade", "text"),
    [
        ((1.0, -3.0), (), "good", "largest replay error of a job -3.0 %"),
        ((5.0, -1.0), (), "good", "largest replay error of a job +5.0 %"),
        ((5.1, -1.0), (), "poor", "largest replay error of a job +5.1 %"),
        ((1.0, None), ("w",), "poor", "largest replay error of a job +1.0 %"),
        ((None, None), (), "fair", "no measured step"),
    ],
)
def test_trust_is_that_of_the_worst_replay(errors, warnings, grade, text):
    jobs = [
        job(name, 1.5, baseline_error_pct=error) for name, error in zip("xy", errors, strict=True)
    ]
    trust = documents.share(report(*jobs, warnings=warnings)).trust
    assert (trust.grade, trust.text) == (grade, text)
    assert len(trust.doubts) == len(warnings) + (grade == "poor" and not warnings)


@pytest.mark.parametrize("count", [5, 2000, 2001])
def test_each_step_is_drawn_where_it_begins(count):
    made = report(sharing=Of(jobs=[ran(count), Of(done=None, alone=Of(makespan=2e-3))]))
    chart = chart_of(documents.share(made), "steps-chart")
    points, level, alone = chart.series
    begin, length = made.sharing.jobs[0].done.begin, made.sharing.jobs[0].done.length
    clock = 1.0 if begin[-1] >= 1 else 1e3
    shown = min(count, 2000)
    assert list(points.x) == pytest.approx(clock * begin[:shown])
    assert list(points.y) == pytest.approx(1e3 * length[:shown])
    assert list(level.y) == pytest.approx([1.0, 1.0])
    assert list(level.x) == pytest.approx([0.0, clock * begin[-1]])
    assert (list(alone.y), alone.name) == (pytest.approx([2.0, 2.0]), "y, alone")
    (section,) = (each for each in documents.share(made).sections if each.anchor == "steps")
    assert ("the first 2,000 steps" in section.about) == (count > 2000)
    still = report(sharing=Of(jobs=[Of(done=None, alone=Of(makespan=2e-3))] * 2))
    assert not any(each.anchor == "steps" for each in documents.share(still).sections)


def test_utilities_are_of_all_jobs_and_of_each():
    rows = (
        utility("compute", 20.0, (10.0, 12.0), (30.0, 31.0)),
        utility("scale_out.bandwidth", None, note="one node"),
        utility("scale_up.bandwidth", 5.0, (4.0, 1.0), (6.0, 2.0), note="n"),
    )
    document = documents.share(report(utilities=rows))
    table, cells = table_of(document, "twice the ...")
    assert cells[0] == (
        "compute", "1", "2", "20.00 %", "10.00 % (12.00 %)", "30.00 % (31.00 %)",
    )  # fmt: skip
    assert [row.bar for row in table.rows] == [20.0, 5.0, None]
    assert table.rows[2].span == "unused: one node"
    assert cells[2] == ("scale-out bandwidth", "", "", "", "", "")
    assert "(in brackets: alone)" in table.foot
    bars, first, second = chart_of(document, "utilities-chart").series
    assert (list(bars.x), list(first.x), list(second.x)) == ([20.0, 5.0], [10.0, 4.0], [30.0, 6.0])
    assert len({bars.colour, first.colour, second.colour}) == 3
    four = [job(name, 1.5) for name in "wxyz"]
    of_four = utility("compute", 20.0, (1.0, 0), (2.0, 0), (3.0, 0), (4.0, 0))
    table, cells = table_of(
        documents.share(report(*four, utilities=(of_four,), factor=3.0)), "3 times the ..."
    )
    assert cells[0][4:] == ("1.00 %", "2.00 %", "3.00 %", "4.00 %")
    assert "brackets" not in table.foot
    five = [*four, job("v", 1.5)]
    of_five = utility("compute", 20.0, *((float(at), 0.0) for at in range(5)))
    _, cells = table_of(documents.share(report(*five, utilities=(of_five,))), "twice the ...")
    assert cells[0][4:] == ("0.00 %", "4.00 %")


def test_details_say_which_steps_were_averaged():
    jobs = (job("x", 1.5), job("y", 1.25, steps_averaged=20, steps_left_out=2), job("z", 1.0))
    made = report(
        *jobs,
        together=({"jobs": ["x", "y"], "note": "settled"},),
        faults=({"change": "a link down", "note": "l"},),
        seating=Of(ranks=4096, nodes=1, placement="random"),
    )
    document = documents.share(made)
    assert document.details["steady"].splitlines() == [
        "settled; averaged steps: 10 of x, 20 of y, after 2 or more warm-up steps",
        "share no link with other jobs: z",
    ]
    assert document.details["what if"] == "a link down (l)"
    assert document.details["lost"] == "12.50 % of the time of all ranks"
    assert document.lead[0].endswith("3,072 of 4,096 ranks on 1 node, random (seed 7).")
