"""Tables on a terminal: nothing is cut, columns are aligned, bars are as long as their shares."""

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.output.document import (
    Bars,
    Document,
    Doubt,
    FactList,
    Row,
    Section,
    Table,
    Text,
    Trust,
)
from experiments.output.terminal import (
    Amount,
    print_document,
    print_facts,
    print_table,
    share_table,
    wrapped,
)
from helpers.tries import tries


def printed(write, width):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    write(console)
    return console.file.getvalue().splitlines()


def lines_of(table, width=80, **scale):
    return printed(lambda console: print_table(console, table, **scale), width)


word = st.text("abcdefg", min_size=1, max_size=9)
text = st.lists(word, min_size=1, max_size=8).map(" ".join)


@tries(60)
@given(
    rows=st.lists(st.tuples(word, word, text), min_size=1, max_size=5), width=st.integers(30, 90)
)
def test_columns_are_side_by_side_aligned_and_texts_wrapped(rows, width):
    table = Table(("name", ">number", "|text"), [Row(row) for row in rows])
    lines = lines_of(table, width)
    assert max(map(len, lines)) <= width
    names = max(len("name"), *(len(row[0]) for row in rows))
    numbers = max(len("number"), *(len(row[1]) for row in rows))
    texts = max(len("text"), *(len(row[2]) for row in rows))
    least = min(texts, 16)
    gap = next((gap for gap in (2, 1) if names + numbers + least + 2 * gap <= width), None)
    if gap is None:
        return
    start = names + numbers + 2 * gap
    room = min(texts, width - start)
    expected = []
    for name, number, words in (("name", "number", "text"), *rows):
        for at, part in enumerate(wrapped(words, room)):
            left = f"{name:{names}}{' ' * gap}{number:>{numbers}}" if not at else ""
            expected.append(f"{left:{start}}{part}")
    assert lines == expected


@tries(60)
@given(
    cells=st.lists(st.lists(word, min_size=4, max_size=4), min_size=1, max_size=4),
    width=st.integers(16, 60),
)
def test_columns_without_room_stand_below_and_every_cell_is_printed(cells, width):
    columns = ("key", ">first", ">second", ">third")
    lines = lines_of(Table(columns, [Row(tuple(row)) for row in cells], keys=1), width)
    assert max(map(len, lines)) <= width
    wide = [max(len(columns[at].lstrip(">")), *(len(row[at]) for row in cells)) for at in range(4)]
    gap = 2 if sum(wide) + 6 <= width else 1 if sum(wide) + 3 <= width else 2
    bands, used = [[]], wide[0]
    for at in (1, 2, 3):
        if bands[-1] and used + gap + wide[at] > width:
            bands.append([])
            used = wide[0]
        bands[-1].append(at)
        used += gap + wide[at]
    if any(wide[0] + gap + wide[at] > width for at in (1, 2, 3)):
        return  # a single column has to be broken
    expected = []
    for number, band in enumerate(bands):
        expected += [""] if number else []
        for row in (("key", "first", "second", "third"), *map(tuple, cells)):
            rest = "".join(f"{' ' * gap}{row[at]:>{wide[at]}}" for at in band)
            expected.append(f"{row[0]:{wide[0]}}{rest}")
    assert lines == [line.rstrip() for line in expected]


def test_a_band_below_leaves_out_rows_without_further_text():
    columns = ("key", ">first", ">second")
    rows = [Row(("a", "1" * 12, "2" * 12)), Row(("b", "3", "")), Row(("c",), span="unused: x")]
    rows[2] = Row(("c", "", ""), span="unused: x")
    lines = lines_of(Table(columns, rows), 20)
    assert lines == [
        "key         first",
        "a    111111111111",
        "b               3",
        "c    unused: x",
        "",
        "key        second",
        "a    222222222222",
    ]


@pytest.mark.parametrize(
    ("bars", "full"), [([100.0, 50.0, 0.4, -25.0], 100.0), ([10.0, -200.0, 100.0, 0.0], 200.0)]
)
def test_bars_are_as_long_as_their_share_of_all_or_of_the_largest_loss(bars, full):
    rows = [Row((f"r{at}", "1 s"), bar) for at, bar in enumerate(bars)]
    for width, scale in ((80, 60), (40, 60), (80, 24)):
        lines = lines_of(Table(("name", ">time"), rows), width, scale=scale)[1:]
        room = width - (4 + 2 + 4 + 2)
        most = min(scale, room - 1)
        for line, bar in zip(lines, bars, strict=True):
            blocks = round(most * abs(bar) / full)
            sign = "-" if bar < 0 and blocks else ""
            assert line[12:] == sign + "█" * blocks
    narrow = lines_of(Table(("name", ">time"), rows), 12 + 8)
    assert not any("█" in line for line in narrow)  # eight characters are no bar
    assert any("█" in line for line in lines_of(Table(("name", ">time"), rows), 12 + 9))


def test_notes_stand_beside_bars_if_there_is_room_else_below():
    rows = [Row(("a", "1 s"), 50.0, note="a note"), Row(("b", "2 s"), None)]
    wide = lines_of(Table(("name", ">time"), rows), 80)
    assert any(line.endswith("a note") for line in wide)
    narrow = lines_of(Table(("name", ">time"), rows), 24)
    assert max(map(len, narrow)) <= 24
    assert any("a note" in line for line in narrow)


def test_only_the_first_rows_of_a_long_table_are_printed_with_how_many_are_left_out():
    rows = [Row((f"r{at}",)) for at in range(2005)]
    lines = lines_of(Table(("name",), rows, most=5, foot="a foot"))
    assert lines[1:6] == [f"r{at}" for at in range(5)]
    assert lines[6:] == ["… and 2,000 more (--output csv or json has all)", "a foot"]
    assert lines_of(Table(("name",), rows[:5], most=5)) == ["name", *(f"r{at}" for at in range(5))]
    assert lines_of(Table(("name",), [])) == []


@tries(40)
@given(st.dictionaries(word, st.floats(0.001, 9.0), min_size=1, max_size=5))
def test_shares_add_up_and_the_longest_is_first(parts):
    table = share_table(Bars("path", parts))
    shares = [row.bar for row in table.rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100)
    for row in table.rows:
        share = 100 * parts[row.cells[0]] / sum(parts.values())
        assert row.cells[2] == f"{share:.1f} %"
    assert share_table(Bars("path", {"a": 0.0})).rows[0].cells[2] == "0.0 %"


@tries(40)
@given(st.lists(word, min_size=1, max_size=9), st.integers(20, 50))
def test_parts_of_a_fact_are_broken_at_dots(parts, width):
    lines = printed(lambda console: print_facts(console, {"fact": parts, "none": ""}), width + 16)
    assert lines[0].startswith(f"{'fact':16}")
    texts = [line[16:] for line in lines]
    assert " · ".join(texts).split(" · ") == parts
    for line, following in pairwise(texts):
        assert len(line) <= width
        assert len(f"{line} · {following.split(' · ')[0]}") > width


def document(grade="good", doubts=(), **fields):
    rows = Table(("name",), [Row(("row",))])
    return Document(
        title="title", headline="headline",
        sections=(
            Section("one", "One", [rows, Text("under it"), rows, Bars("bars", {"x": 1.0})]),
            Section("page", "Page", [rows], terminal=False),
            Section("empty", "Empty", [Table(("name",), []), FactList({"a": ""}), Text("")]),
        ),
        trust=Trust("reasons", grade, doubts),
        **{
            "cause": "cause", "facts": {"load": "l"}, "details": {"what if": "w", "engine": "e"},
            "next_steps": ("ask this", "or that"), **fields,
        },
    )  # fmt: skip


def told(made, amount=Amount.ANSWER):
    return printed(lambda console: print_document(console, made, amount), 80)


def test_an_answer_is_headline_cause_tables_and_trust():
    bars = ["bars  time    share", f"x      1 s  100.0 %  {'█' * 24}"]
    body = ["name", "row", "under it", "", "name", "row", "", *bars]
    above = ["headline", "cause", "", f"{'load':16}l", "", f"{'what if':16}w", ""]
    below = ["", "trust  good: reasons", "next   ask this · or that"]
    assert told(document()) == [*above, *body, *below]
    assert told(document(), Amount.QUIET) == body
    verbose = told(document(), Amount.VERBOSE)
    assert verbose[-4:] == ["", "title", f"{'what if':16}w", f"{'engine':16}e"]
    assert verbose[: len(above) - 2] == above[:-2]
    poor = told(document("poor", (Doubt("a doubt", "a remedy"),)))
    assert poor[:5] == [
        "headline",
        "cause",
        "",
        "trust  poor: reasons",
        f"       {Doubt('a doubt', 'a remedy')}",
    ]
    assert poor[-2:] == ["", "next   ask this · or that"]
    bare = told(document(cause="", facts={}, details={}, next_steps=()))
    assert bare[:3] == ["headline", "", "name"]
    assert bare[-1] == "trust  good: reasons"
