"""Documents of networks from rows put together by hand, without simulating any."""

import math
from types import SimpleNamespace as Of

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.documents import networks as documents
from experiments.output.words import say_size, say_time
from experiments.questions.calibrate import Parameter
from helpers.tries import tries
from simulator.support.quantities import format_quantity

ROUTING = Of(policy="shortest", lines=list)


def point(size, time, **fields):
    usual = {
        "kind": "all_to_all", "ranks": 2048, "size_bytes": size, "time_s": time,
        "algbw_GBps": size / time / 1e9, "busbw_GBps": 0.9 * size / time / 1e9, "algorithm": "ring",
        "protocol": "Simple", "input_bytes": None, "even_s": None,
    }  # fmt: skip
    return Of(**{**usual, **fields})


def collective(*points, imbalance=None):
    fields = {"where": "c", "network_prior": (), "engine": "flow", "routing": ROUTING}
    fields |= {"cluster": None, "doubts": (), "points": points, "imbalance": imbalance}
    return documents.collective(Of(**fields))


sizes = st.floats(1e3, 1e10)
times = st.floats(1e-6, 1.0)


@tries(30)
@given(st.lists(st.tuples(sizes, times), min_size=1, max_size=4))
def test_a_collective_has_a_row_for_each_size(rows):
    points = [point(size, time) for size, time in rows]
    document = collective(*points)
    _, table = document.sections[0].blocks
    assert table.columns == (">size", ">time", ">algbw", ">busbw", "algorithm", "protocol")
    for row, each in zip(table.rows, points, strict=True):
        assert row.cells == (
            say_size(each.size_bytes), say_time(each.time_s), f"{each.algbw_GBps:.2f} GB/s",
            f"{each.busbw_GBps:.2f} GB/s", "ring", "Simple",
        )  # fmt: skip
    best = max(each.busbw_GBps for each in points)
    assert document.headline == (
        f"An all-to-all of {say_size(points[-1].size_bytes)} among 2,048 ranks takes"
        f" {say_time(points[-1].time_s)}; busbw reaches {best:.4g} GB/s."
    )
    time, busbw = document.sections[0].blocks[0].series
    assert list(time.x) == list(busbw.x) == [each.size_bytes for each in points]
    assert list(time.y) == pytest.approx([1e6 * each.time_s for each in points])
    assert list(busbw.y) == [each.busbw_GBps for each in points]
    assert document.facts == {}
    assert document.trust is None


@tries(30)
@given(times, times, sizes)
def test_an_uneven_one_says_what_its_busiest_port_costs(time, even, size):
    uneven = Of(rank=3, way="sends", busiest_over_mean=1.5, given="zipf:1")
    spread = point(size, time, input_bytes=size / 2, even_s=even)
    document = collective(spread, point(size, time), imbalance=uneven)
    _, table = document.sections[0].blocks
    assert table.columns[:5] == (">input", ">size", ">time", ">even", ">busiest costs")
    more = time - even
    sign = "+" if more >= 0 else "-"
    first, second = (row.cells for row in table.rows)
    assert first[:5] == (
        say_size(size / 2), say_size(size), say_time(time), say_time(even),
        f"{sign}{say_time(abs(more))}",
    )  # fmt: skip
    assert (second[0], second[3], second[4]) == ("", "", "")
    assert {len(first), len(second)} == {len(table.columns)}
    assert document.facts["imbalance"] == "zipf:1: rank 3 sends 1.5 times the mean"
    assert "spread evenly" in table.foot
    plain = collective(point(size, time, kind="broadcast"))
    assert plain.headline.startswith("A broadcast of ")


@tries(30)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.floats(1e-7, 1e12),
            st.one_of(st.none(), st.floats(0.1, 10)),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_parameters_have_their_units_and_bounds_and_the_largest_ratio_is_named(rows):
    parameters = [
        Parameter(
            f"kind{at}",
            "scale_up.bandwidth" if is_bandwidth else "software",
            now,
            None if multiple is None else now * multiple,
            multiple,
            0.5 if is_bounded else None,
            2.0 if is_bounded else None,
        )
        for at, (is_bandwidth, now, multiple, is_bounded) in enumerate(rows)
    ]
    table = documents._parameters(parameters, "trace")
    assert table.columns[3] == ">trace"
    for row, each in zip(table.rows, parameters, strict=True):
        unit = "B/s" if each.parameter.endswith("bandwidth") else "s"
        is_known = each.value is not None and each.low is not None
        low, high = (format_quantity(each.now * by, unit) for by in (0.5, 2.0))
        assert row.cells == (
            each.kind,
            each.parameter,
            format_quantity(each.now, unit),
            "unchanged" if each.value is None else format_quantity(each.value, unit),
            f"{low} to {high}" if is_known else "",
            each.note,
        )
    fitted = [each for each in parameters if each.value is not None]
    if fitted:
        most = max(fitted, key=lambda each: abs(math.log(each.value / each.now)))
        sentence = documents._largest_change(fitted)
        now, value = (documents._value(most, number) for number in (most.now, most.value))
        expected = f"The largest change is {most.kind} {most.parameter}, from {now} to {value}"
        assert sentence == ("All agree with the cluster file" if now == value else expected)


def test_a_quantity_of_many_links_is_one_value_or_the_least_and_the_most():
    assert documents._range(1e9, 1e9, "B/s") == "1 GB/s"
    assert documents._range(1e9, 2e9, "B/s") == "1 GB/s to 2 GB/s"
