"""Answers as rows of a database, and texts of constraints, at the ends of what they may be."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.constraints import contradiction, parse_constraint, parse_formula
from experiments.studies.dimensions import as_written
from experiments.studies.placed import Move, Served
from experiments.studies.store import Answer, answer_of, row_of
from helpers.tries import tries
from simulator.support.errors import StudyError
from simulator.support.quantities import CENTURY

times = st.one_of(st.just(math.nan), st.floats(0, CENTURY))
moves = st.builds(Move, st.text(max_size=5), st.floats(-1, 1), st.floats(-1, 1))


@tries(60)
@given(
    times,
    times,
    st.text(max_size=9),
    st.lists(moves, max_size=3),
    st.one_of(
        st.none(), st.lists(times, min_size=len(Served._fields), max_size=len(Served._fields))
    ),
)
def test_an_answer_comes_back_from_its_row(step, busy, refused, moved, served):
    answer = Answer(step, busy, refused, tuple(moved), None if served is None else Served(*served))
    row = row_of(answer)
    assert (row[0] is None, row[1] is None) == (math.isnan(step), math.isnan(busy))
    assert repr(answer_of(*row)) == repr(answer)


@pytest.mark.parametrize(
    "row",
    [
        (-1e-9, None, "", "", ""),
        (None, 1.01 * CENTURY, "", "", ""),
        (math.inf, None, "", "", ""),
        ("1", None, "", "", ""),
        (None, None, "", json.dumps([["a", 1.0]]), ""),
        (None, None, "", json.dumps([["a", 1.0, None]]), ""),
        (None, None, "", json.dumps([["a", 1.0, math.inf]]), ""),
        (None, None, "", "{", ""),
        (None, None, "", "", json.dumps([1.0])),
        (None, None, "", "", json.dumps([-1.0] * len(Served._fields))),
    ],
)
def test_a_row_that_this_program_did_not_write_is_damaged(row):
    with pytest.raises(StudyError, match="a stored answer is damaged"):
        answer_of(*row)


def test_levels_are_written_as_files_have_them():
    written = [as_written(value) for value in ("true", "false", "x", 2.0, 2.5)]
    assert written == [True, False, "x", 2, 2.5]
    assert [type(value) for value in written] == [bool, bool, str, int, float]


def test_a_constraint_has_five_hundred_characters_at_most():
    text = f"gpus <= 8{' ' * 491}"
    assert len(text) == 500
    assert parse_constraint(text, lambda _: "").holds({"gpus": 8.0}.__getitem__)
    assert parse_formula(f"gpus{' ' * 496}", lambda _: "").names == {"gpus"}
    for read in (parse_constraint, parse_formula):
        with pytest.raises(StudyError, match="501 characters are more than 500"):
            read(f"gpus{' ' * 497}", lambda _: "")


bounds = st.lists(
    st.tuples(st.sampled_from(["<", "<=", "==", ">=", ">"]), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=4,
)


@tries(80)
@given(bounds)
def test_constraints_contradict_where_no_number_meets_all(rows):
    """Of halves between 0 and 3 some meets all, unless two of them leave nothing."""
    mirrored = {"<": ">", "<=": ">=", "==": "==", ">=": "<=", ">": "<"}
    texts = [
        f"{value} {mirrored[sign]} gpus" if turned else f"gpus {sign} {value}"
        for sign, value, turned in rows
    ]
    read = [parse_constraint(text, lambda _: "") for text in texts]
    possible = [
        number / 2
        for number in range(-4, 12)
        if all(each.holds({"gpus": number / 2}.__getitem__) for each in read)
    ]
    found = contradiction(read)
    assert (found is None) == bool(possible)
    assert found is None or set(found) <= set(texts)
