"""What a dimension may be, value by value; searches over levels by brute force."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.declaration import declare
from experiments.studies.dimensions import DimensionError, Span, parse_dimension
from experiments.studies.figures import Draws, kept, pareto, quantile
from experiments.studies.placed import Move
from experiments.studies.results import Row
from experiments.studies.search import METHODS, SLAB
from helpers.studies import PLAN, TRACE, fields, links
from helpers.tries import tries
from simulator.support.errors import StudyError

REFUSED = {
    "compute": [
        (True, (0,)), ("2", (0,)), (0, (0,)), (-1, (0,)), (2e6, (0,)), (math.nan, (0,)),
        (None, (0,)),
        ({"factors": [1], "steps": 2}, ("steps",)), ({"factors": 2}, ("factors",)),
        ({"factors": [1, 0]}, ("factors", 1)), ({"log": [1, 2], "linear": [1, 2]}, ()),
        ({"log": [1, 2], "stps": 2}, ("stps",)), ({"log": 1}, ("log",)), ({"log": [1]}, ("log",)),
        ({"log": [1, 2, 3]}, ("log",)), ({"log": [2, 2]}, ("log",)), ({"log": [2, 1]}, ("log",)),
        ({"linear": [1, "x"]}, ("linear", 1)), ({"log": [1, 2], "steps": 1}, ("steps",)),
        ({"log": [1, 2], "steps": True}, ("steps",)), ({"log": [1, 2], "steps": 2.0}, ("steps",)),
        ({"log": [1, 2], "steps": 100_001}, ("steps",)), ([1] * 2, (1,)), ([], ()), ({}, ()),
    ],
    "scale_up.bandwidth": [
        (5, (0,)), ("5", (0,)), ("0 GB/s", (0,)), ("-1 GB/s", (0,)), ("5 s", (0,)),
        (["5 GB/s", 7.5], (1,)), (["5 GB/s", "5000 MB/s"], (1,)),
    ],
    "scale_up.size": [(0, (0,)), (0.5, (0,)), (8.5, ()), (math.inf, (0,)), (True, (0,))],
    "nodes": [(0, (0,)), ({"log": [1, 8]}, ()), (1.5, ()), ("2", (0,))],
    "cluster": [(3, (0,)), ("", (0,)), (["a", " "], (1,)), (None, (0,)), (["a", "a"], (1,))],
    "what_if": [("no what-if", (0,)), (["compute x2", 3], (1,)), ("", (0,))],
    "algorithm": [("ring", (0,)), (["all_reduce=ring", "x=y=z"], (1,))],
    "plan.tp": [(None, (0,)), ([1, []], (1,)), ([1, {}], (1,)), ({"log": [1, 8]}, ()), ([], ())],
    "library.name": [({"linear": [1, 2]}, ()), ("nocl", (0,)), (["nccl", 3], (1,))],
    "scale_out.topology": [(3, (0,)), ({"rail": 3}, (0,)), ({"rail": {}, "ring": {}}, (0,))],
}  # fmt: skip
"""Values that are refused, each with the path to what is wrong of it."""


@pytest.mark.parametrize(
    ("name", "raw", "path"),
    [(name, raw, path) for name, rows in REFUSED.items() for raw, path in rows],
)
def test_a_value_that_cannot_be_is_refused_where_it_stands(name, raw, path):
    if isinstance(raw, dict) and name == "scale_out.topology":
        raw = [raw]
    with pytest.raises(DimensionError) as caught:
        parse_dimension(name, raw)
    assert caught.value.path == path


ACCEPTED = {
    "compute": ([1, 1e6, 1e-6], "factor", (1.0, 1e6, 1e-6), "x"),
    "host": ({"factors": [0.5, 2]}, "factor", (0.5, 2.0), "x"),
    "scale_up.bandwidth": (["5 GB/s", "7 GB/s"], "resource", (5e9, 7e9), "B/s"),
    "scale_out.latency": ("3 us", "resource", (3e-6,), "s"),
    "scale_up.size": ({"linear": [1, 9], "steps": 5}, "resource", (1, 3, 5, 7, 9), ""),
    "nodes": (1, "nodes", (1.0,), ""),
    "cluster": (["a", "b"], "cluster", ("a", "b"), ""),
    "what_if": (["none", "compute x2"], "what_if", ("none", "compute x2"), ""),
    "algorithm": (["none", "all_reduce=ring"], "algorithm", ("none", "all_reduce=ring"), ""),
    "plan.tp": ([1, 2.5], "plan", (1.0, 2.5), ""),
    "plan.recompute": (["full", True, 1], "plan", ("full", "true", "1"), ""),
    "scale_out.topology": (
        ["rail", {"rail": {"routing": "ecmp", "ports": 3}}],
        "topology",
        ("rail", '{"rail": {"ports": 3, "routing": "ecmp"}}'),
        "",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_dimension_has_its_values_in_base_units(name):
    raw, kind, levels, unit = ACCEPTED[name]
    dimension = parse_dimension(name, raw)
    assert (dimension.kind, dimension.unit, dimension.span) == (kind, unit, None)
    assert dimension.levels == pytest.approx(levels) if unit else dimension.levels == levels
    assert dimension.is_number == all(isinstance(level, float) for level in dimension.levels)
    for at, level in enumerate(dimension.levels):
        assert dimension.value(float(at)) == level
        for within in (0.01, 0.5, 0.99):
            share = (at + within) / len(dimension.levels)
            assert dimension.coordinate(share) == at
    assert dimension.coordinate(1.0) == len(dimension.levels) - 1


@tries(40)
@given(
    low=st.floats(0.1, 10), more=st.floats(1.01, 100), steps=st.integers(2, 9), log=st.booleans()
)
def test_a_range_goes_from_end_to_end_in_equal_ratios_or_differences(low, more, steps, log):
    span = Span(low, low * more, log=log)
    values = span.values(steps)
    assert len(values) == steps
    assert (values[0], values[-1]) == (pytest.approx(low), low * more)
    change = np.diff(np.log(values) if log else values)
    assert change == pytest.approx(change[0])
    assert span.at(0.5) == pytest.approx(
        math.sqrt(low * low * more) if log else low * (1 + more) / 2
    )
    name = "log" if log else "linear"
    dimension = parse_dimension("compute", {name: [low, low * more]})
    assert (dimension.levels, dimension.span, dimension.unit) == ((), span, "x")
    assert dimension.is_number
    assert dimension.coordinate(0.25) == dimension.value(span.at(0.25))


FREE = {
    "scale_up.bandwidth": ["1 GB/s"], "scale_out.latency": ["1 us"], "scale_out.efficiency": [0.9],
    "scale_up.topology": ["ring"], "what_if": ["compute x2"], "compute": [2], "host.cpu": None,
}  # fmt: skip
BOUGHT = {
    "scale_out.bandwidth": ["1 GB/s"], "scale_out.topology": ["rail"], "cluster": ["a"],
    "nodes": [1], "algorithm": ["all_reduce=ring"], "plan.tp": [1], "library.name": ["nccl"],
    "ranks_per_node": [8],
}  # fmt: skip


def test_hardware_that_comes_with_the_node_has_no_price_of_its_own():
    for table, free in ((FREE, True), (BOUGHT, False)):
        for name, raw in table.items():
            if raw is not None:
                assert parse_dimension(name, raw).is_free == free, name


def asked(content, step):
    """Answer the points of a search by a formula; return batches of them, and what it found."""
    declared = declare(content)
    method, batches = METHODS[declared.file.search.method](declared), []
    try:
        batch = next(method)
        while True:
            batches.append([tuple(at) for at in batch])
            rows = []
            for at in batch:
                values = [d.value(c) for d, c in zip(declared.dimensions, at, strict=True)]
                time = step(*values)
                refused = "" if time is not None else "wall"
                rows.append(Row(at, (), {"step_s": time} if time is not None else {}, refused, 0.0))
            batch = method.send(rows)
    except StopIteration as end:
        return batches, end.value


@tries(40)
@given(
    levels=st.lists(st.integers(1, 999), min_size=1, max_size=12, unique=True),
    drops=st.lists(st.floats(0, 1), min_size=12, max_size=12),
    loss=st.sampled_from([1, 10, 50]),
    refused=st.integers(0, 3),
)
def test_bisection_of_levels_finds_the_least_that_a_walk_finds(levels, drops, loss, refused):
    ascending = sorted(levels)
    falling = np.cumsum([1.0, *drops])[::-1][: len(ascending)]
    steps = dict(zip(ascending, falling.tolist(), strict=True))
    for level in ascending[: min(refused, len(ascending) - 1)]:  # too small ones are refused
        steps[level] = None
    search = {"method": "bisect", "over": "scale_up.size", "loss": f"{loss} %"}
    batches, found = asked(fields({"scale_up.size": levels}, search), lambda size: steps[int(size)])
    (threshold,) = found.thresholds
    best = steps[ascending[-1]]
    kept_levels = [
        level
        for level in ascending
        if steps[level] is not None and steps[level] <= (1 + loss / 100) * best
    ]
    assert threshold.value == kept_levels[0]
    assert (threshold.step, threshold.best_step) == (steps[kept_levels[0]], best)
    assert threshold.at_end == (kept_levels[0] == ascending[0])
    assert len(batches) <= 1 + math.ceil(math.log2(max(2, len(levels))))
    assert len({at for batch in batches for at in batch}) == sum(map(len, batches))


def test_a_bisection_without_its_best_end_finds_nothing():
    search = {"method": "bisect", "over": "host"}
    space = {"host": {"linear": [1, 2]}, "nodes": [1, 2]}
    batches, found = asked(fields(space, search), lambda host, nodes: 1.0 if host < 2 else None)
    assert [threshold.value for threshold in found.thresholds] == [None, None]
    assert [threshold.others for threshold in found.thresholds] == [(0.0,), (1.0,)]
    assert len(batches) == 1
    assert sorted(batches[0]) == [(1.0, 0.0), (1.0, 1.0), (2.0, 0.0), (2.0, 1.0)]
    # Without other words the step may be 2 % longer, and the value 1 % above the least.
    (line,) = asked(fields({"host": {"log": [1, 100]}}, search), lambda host: 1 + 1 / host)[
        1
    ].thresholds
    least = 1 / (1.02 * 1.01 - 1)
    assert least <= line.value <= 1.01 * least


@pytest.mark.parametrize("method", ["grid", "random"])
def test_points_come_in_slabs_each_once(method):
    space = {"compute": {"linear": [1, 2], "steps": 90}, "host": {"linear": [1, 2], "steps": 100}}
    search = {"method": method} | ({} if method == "grid" else {"trials": 8500, "seed": 2})
    batches, found = asked(fields(space, search), lambda *_: 1.0)
    sizes = [len(batch) for batch in batches]
    count = 9000 if method == "grid" else 8500
    assert sizes == [SLAB, SLAB, count - 2 * SLAB]
    assert len({at for batch in batches for at in batch}) == count
    assert (found.thresholds, found.sensitivity) == ((), ())


@pytest.mark.parametrize(
    ("trials", "batch", "size"), [(2000, None, 50), (320, None, 20), (40, None, 8), (90, 30, 30)]
)
def test_a_population_leaves_time_for_sixteen_generations(trials, batch, size):
    space = {"compute": {"linear": [1, 2]}, "host": {"linear": [1, 2]}}
    search = {"method": "nsga2", "trials": trials, "seed": 1}
    declared = declare(fields(space, search | ({"batch": batch} if batch else {})))
    assert len(next(METHODS["nsga2"](declared))) == size


@pytest.mark.parametrize(("trials", "samples"), [(64, 16), (127, 16), (128, 32), (1000, 128)])
def test_sensitivity_takes_the_greatest_power_of_two_of_samples(trials, samples):
    space = {"compute": {"linear": [1, 2]}, "host": {"linear": [1, 2]}, "nodes": [1]}
    search = {"method": "sensitivity", "trials": trials, "seed": 1}
    batches, found = asked(fields(space, search), lambda compute, host, nodes: compute)
    points = [at for batch in batches for at in batch]
    assert len(points) == samples * 4
    assert {at[2] for at in points} == {0.0}
    first, second, *crossed = (
        np.array(points[at * samples : (at + 1) * samples])[:, :2] for at in range(4)
    )
    assert first[:8] != pytest.approx(second[:8])
    for column, table in enumerate(crossed):  # one column of the second sample, else the first
        assert (table[:, column] == second[:, column]).all()
        assert (table[:, 1 - column] == first[:, 1 - column]).all()
    (indices,) = found.sensitivity
    assert indices.first["host"] == pytest.approx(0, abs=0.2)
    constant = asked(fields(space, search), lambda *_: 3.0)[1].sensitivity[0]
    assert constant.first == constant.total == {"compute": 0.0, "host": 0.0}


CONFIRM = {
    "grid": {}, "random": {"trials": 5}, "nsga2": {"trials": 50},
    "bisect": {"over": "compute"}, "sensitivity": {"trials": 100},
}  # fmt: skip


@pytest.mark.parametrize("method", CONFIRM)
@pytest.mark.parametrize("engine", ["analytic", "flow", None])
@pytest.mark.parametrize("objective", ["step_s", "compute"])
def test_a_front_of_the_analytic_engine_is_confirmed_by_flow(method, engine, objective):
    content = fields(
        {"compute": [1, 2]},
        {"method": method, **CONFIRM[method]},
        objectives={objective: "min"},
        settings={} if engine is None else {"engine": engine},
    )
    declared = declare(content)
    expected = (
        method not in ("bisect", "sensitivity") and engine != "flow" and objective == "step_s"
    )
    assert declared.confirm == ("flow" if expected else None)
    assert declared.settings.engine == (engine or "analytic")
    for confirm, result in (("none", None), ("simpy", "simpy")):
        assert declare({**content, "confirm": confirm}).confirm == result


def test_fields_that_decide_one_another_are_refused(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    plan = [{"plan": str(tmp_path / "plan.yaml")}]
    for space in ({"plan.gpus": [8], "plan.dp": [2]}, {"plan.dp": [2], "plan.gpus": [8]}):
        with pytest.raises(StudyError, match=r"plan\.dp follows from it"):
            declare(fields(space, {"method": "grid"}, workloads=plan))
    for name in ("plan.gpus", "plan.dp"):
        declare(fields({name: [8]}, {"method": "grid"}, workloads=plan))
    mixed = [*plan, {"trace": TRACE}]
    assert declare(fields({"plan.tp": [1]}, {"method": "grid"}, workloads=mixed)).points == 1
    with pytest.raises(StudyError, match="given twice"):
        declare(fields({"ScaleUp.Size": [8], "scale_up.size": [4]}, {"method": "grid"}))


def test_workloads_of_one_name_are_numbered():
    workloads = [{"trace": TRACE}, {"trace": TRACE, "name": "b"}, {"trace": TRACE}]
    named = declare(links(workloads=workloads)).names
    assert named == ("gpu-dp2-tp4", "b", "gpu-dp2-tp4 2")


@tries(30)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9), st.integers(1, 99))
def test_quantiles_are_of_the_values_and_the_worst_is_their_end(values, percent):
    table = np.array([values, values])
    ranked = sorted(values)
    for name, share in ((f"p{percent}", percent / 100), ("median", 0.5)):
        at = share * (len(values) - 1)
        low = ranked[int(at)]
        high = ranked[min(int(at) + 1, len(values) - 1)]
        expected = low + (at - int(at)) * (high - low)
        assert quantile(table, name, "min") == pytest.approx([expected] * 2)
    assert quantile(table, "worst", "min").tolist() == [max(values)] * 2
    assert quantile(table, "worst", "max").tolist() == [min(values)] * 2


def test_draws_are_one_of_each_equally_likely_part_in_an_order_of_the_source():
    draws = Draws()
    a, b = draws.of("a"), draws.of("b")
    levels = [NormalDist().inv_cdf((at + 0.5) / 200) for at in range(200)]
    assert sorted(a) == sorted(b) == pytest.approx(levels)
    assert (a != b).any()
    assert (Draws().of("a") == a).all()
    moves = (Move("a", longer=0.196, shorter=-0.392), Move("b", longer=0.0, shorter=-0.1))
    logs = np.log(draws.factors(moves))
    expected = [
        (x * 0.1 if x >= 0 else x * 0.2 * np.sign(0.392)) + (0.0 if y >= 0 else y * 0.1 / 1.96)
        for x, y in zip(a, b, strict=True)
    ]
    assert logs == pytest.approx(expected)


@tries(30)
@given(st.integers(0, 99), st.integers(1, 6))
def test_a_point_keeps_its_place_on_the_front_in_this_share_of_draws(seed, count):
    random = np.random.default_rng(seed)
    values = random.integers(0, 5, (count, 2)).astype(float)
    tables = {0: random.integers(0, 5, (count, 7)).astype(float)}
    front = np.flatnonzero(pareto(values)).tolist()
    shares = kept(values, tables, front)
    for row, share in zip(front, shares, strict=True):
        stays = 0
        for draw in range(7):
            now = [(tables[0][at, draw], values[at, 1]) for at in range(count)]
            mine = now[row]
            stays += not any(
                other[0] <= mine[0] and other[1] <= mine[1] and other != mine for other in now
            )
        assert share == stays / 7
    assert kept(values, {}, front) == [1.0] * len(front)
    assert json.loads(json.dumps(shares)) == shares
