"""Two answers to one command: in which numbers they differ, and in what else.

Numbers are the same if their texts are: nothing is rounded. What only one of the answers has is
told apart from what both have and do not agree on.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
ENVELOPE = frozenset({"schema", "version", "command", "settings", "inputs", "cluster_sha256"})
"""Keys at the top of an answer that say how it came about; they may be added to any."""

FAULTS = ("absent", "status", "number", "missing", "file")
"""What makes two recordings differ: the rest is told, and may be meant."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs at a place of an answer.

    ``kind`` is one of FAULTS, ``added``, ``expected`` (added, and one of those that may be) or
    ``text`` (words changed, their numbers did not).
    """

    kind: str
    where: str
    before: object
    after: object

    def __str__(self) -> str:
        if self.kind in ("added", "expected"):
            return f"{self.where}: {_short(self.after)}"
        if self.kind == "missing":
            return f"{self.where}: {_short(self.before)}"
        return f"{self.where}: {_short(self.before)} -> {_short(self.after)}"


Same = Callable[[object, object], bool]
"""Whether two numbers are the same."""


def exactly(before: object, after: object) -> bool:
    """Whether two numbers are the same to the last bit, and both whole or neither."""
    return repr(before) == repr(after)


def of_records(
    before: object,
    after: object,
    *,
    where: str = "$",
    expected: Iterable[str] = ENVELOPE,
    same: Same = exactly,
) -> Iterator[Difference]:
    """Compare two JSON answers; a list that became the rows of an object is compared with these."""
    if isinstance(before, list) and isinstance(after, dict):
        rows = _rows_of(after, before)
        if rows is not None:
            for key in sorted(after.keys() - {rows}):
                yield _added(f"{where}.{key}", key, after[key], expected)
            where, after = f"{where}.{rows}", after[rows]
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(before, after, where, expected, same)
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from of_records(old, new, where=f"{where}[{index}]", expected=(), same=same)
        yield from _longer(before, after, where)
    else:
        yield from _of_values(before, after, where, same)


def _rows_of(after: dict[str, Any], before: list[Any]) -> str | None:
    """Name the list of an object whose rows have the keys of the list that was."""
    keys = before[0].keys() if before and isinstance(before[0], dict) else {}
    fitting = [
        key
        for key, value in after.items()
        if isinstance(value, list)
        and len(value) == len(before)
        and all(isinstance(row, dict) and keys <= row.keys() for row in value)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _is_named(value: object) -> bool:
    """Whether a cluster is told by its name and the hash of its content, as it is today."""
    return isinstance(value, dict) and value.keys() == {"name", "sha256"}


def _of_objects(
    before: dict[str, Any], after: dict[str, Any], where: str, expected: Iterable[str], same: Same
) -> Iterator[Difference]:
    for key in before:
        if key == "cluster" and isinstance(before[key], str) and _is_named(after.get(key)):
            yield from _of_values(before[key], after[key]["name"], f"{where}.{key}.name", same)
        elif key in after:
            yield from of_records(
                before[key], after[key], where=f"{where}.{key}", expected=(), same=same
            )
        else:
            yield Difference("missing", f"{where}.{key}", before[key], None)
    for key in after:
        if key not in before:
            yield _added(f"{where}.{key}", key, after[key], expected)


def _added(where: str, key: str, value: object, expected: Iterable[str]) -> Difference:
    return Difference("expected" if key in expected else "added", where, None, value)


def _longer(before: Sequence[object], after: Sequence[object], where: str) -> Iterator[Difference]:
    for index in range(len(after), len(before)):
        yield Difference("missing", f"{where}[{index}]", before[index], None)
    for index in range(len(before), len(after)):
        yield Difference("added", f"{where}[{index}]", None, after[index])


def _of_values(before: object, after: object, where: str, same: Same) -> Iterator[Difference]:
    if isinstance(before, str) and isinstance(after, str):
        if before != after:
            differs = numbers(before) != numbers(after)
            yield Difference("number" if differs else "text", where, before, after)
    elif type(before) is not type(after) or not same(before, after):
        yield Difference("number", where, before, after)


def of_csv(before: str, after: str, where: str = "$") -> Iterator[Difference]:
    """Compare two tables of comma-separated values by the names of their columns."""
    old, new = (list(csv.DictReader(_without_comments(text))) for text in (before, after))
    heads = [next(iter(csv.reader(_without_comments(text))), []) for text in (before, after)]
    for name in heads[0]:
        if name not in heads[1]:
            yield Difference("missing", f"{where}.{name}", "a column", None)
    for name in heads[1]:
        if name not in heads[0]:
            yield _added(f"{where}.{name}", name, "a column", ENVELOPE)
    both = [name for name in heads[0] if name in heads[1]]
    for index, (one, other) in enumerate(zip(old, new, strict=False)):
        for name in both:
            yield from _of_values(one[name], other[name], f"{where}[{index}].{name}", exactly)
    yield from _longer(old, new, where)


def _without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def of_text(before: str, after: str, where: str = "$") -> Iterator[Difference]:
    """Compare the numbers of two texts in their order, then their lines."""
    old, new = numbers(before), numbers(after)
    for what, begin, end, first, last in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if what == "equal":
            continue
        kind = {"insert": "added", "delete": "missing"}.get(what, "number")
        yield Difference(
            kind, f"{where} number {begin}", " ".join(old[begin:end]), " ".join(new[first:last])
        )
    yield from _of_lines(before.splitlines(), after.splitlines(), where)


def _of_lines(before: Sequence[str], after: Sequence[str], where: str) -> Iterator[Difference]:
    """Tell which words changed, line by line; numbers are told elsewhere, blanks at ends never."""
    old, new = ([line.rstrip() for line in lines] for lines in (before, after))
    for what, begin, end, first, last in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if what == "equal":
            continue
        pairs = zip_longest(old[begin:end], new[first:last], fillvalue="")
        for number, (one, other) in enumerate(pairs, begin + 1):
            if NUMBER.sub("0", one) != NUMBER.sub("0", other):
                yield Difference("text", f"{where} line {number}", one, other)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text as they are written."""
    return NUMBER.findall(text)


def of_answers(
    before: Mapping[str, Any], after: Mapping[str, Any], expected: Iterable[str] = ENVELOPE
) -> Iterator[Difference]:
    """Compare two recorded answers, :func:`acceptance.record.record` has written them."""
    where, form = f"{before['name']}.{before['form']}", before["form"]
    if len(before["runs"]) != len(after["runs"]):
        yield Difference("absent", f"{where}: runs", len(before["runs"]), len(after["runs"]))
    for index, (old, new) in enumerate(zip(before["runs"], after["runs"], strict=False)):
        place = where if len(before["runs"]) == 1 else f"{where} run {index + 1}"
        if old["status"] != new["status"]:
            yield Difference("status", f"{place} status", old["status"], new["status"])
        yield from _of_stdout(old["stdout"], new["stdout"], form, place, expected)
        yield from of_text(old["stderr"], new["stderr"], f"{place} stderr")
    yield from _of_files(before["files"], after["files"], where)


def _of_stdout(
    before: str, after: str, form: str, where: str, expected: Iterable[str]
) -> Iterator[Difference]:
    if before == after:
        return
    if form == "json" and before and after:
        yield from of_records(
            json.loads(before), json.loads(after), where=f"{where} $", expected=expected
        )
    elif form == "csv":
        yield from of_csv(before, after, f"{where} $")
    else:
        yield from of_text(before, after, f"{where} stdout")


def _of_files(
    before: Mapping[str, Any], after: Mapping[str, Any], where: str
) -> Iterator[Difference]:
    for name in before:
        place = f"{where} file {name}"
        if name not in after:
            yield Difference("missing", place, "a file", None)
            continue
        old, new = before[name], after[name]
        if old == new:
            continue
        if "text" in old and "text" in new:
            yield from of_text(old["text"], new["text"], place)
        elif "numbers" in old and old["numbers"] == new.get("numbers"):
            yield Difference("text", place, "its words", "others")
        else:
            kind = "text" if old.get("figure") else "file"
            yield Difference(kind, place, old["sha256"][:12], new["sha256"][:12])
    for name in after:
        if name not in before:
            yield Difference("added", f"{where} file {name}", None, "a file")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
