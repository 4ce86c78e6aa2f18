"""A record is as a dataclass of the standard library is, in all that a program can ask of it."""

import copy
import dataclasses
import inspect
import pickle
import re
from math import nan

import pytest

from benchmarks.house import python_files
from simulator.support import records

SHAPES = [
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True, "eq": False, "repr": False},
    {"slots": True},
    {},
    {"frozen": True, "slots": True, "kw_only": True},
]


def made(decorator, options, post):
    field = dataclasses.field

    class Part:
        """Some fields of every sort."""

        size: float
        name: str = field(default="a", kw_only=True)
        table: dict[str, int] = field(default_factory=dict, hash=False)
        unseen: int = field(default=7, repr=False, compare=False)
        later: list[int] = field(default_factory=list, init=False, compare=False)
        fixed: int = field(default=3, init=False)

        if post:

            def __post_init__(self):
                if self.size < 0:
                    raise ValueError

    Part.__qualname__ = "Part"
    return decorator(**options)(Part)


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("options", SHAPES)
def test_a_record_is_as_a_dataclass_is(options, post):
    ours, theirs = (made(each.dataclass, options, post) for each in (records, dataclasses))
    needs = {"size": 2.0}
    for words in (needs, needs | {"name": "b"}, needs | {"table": {"x": 1}, "unseen": 8}):
        mine, model = ours(**words), theirs(**words)
        assert dataclasses.asdict(mine) == dataclasses.asdict(model)
        assert (mine == ours(**needs)) == (model == theirs(**needs))
        assert mine != model
        if options.get("repr", True):
            assert repr(mine) == repr(model)
        assert hasattr(mine, "__dict__") == hasattr(model, "__dict__")
        assert (ours.__hash__ is None) == (theirs.__hash__ is None)
        changed, as_changed = (dataclasses.replace(each, size=9.0) for each in (mine, model))
        assert dataclasses.asdict(changed) == dataclasses.asdict(as_changed)
        assert dataclasses.asdict(copy.copy(mine)) == dataclasses.asdict(mine)
        for each in (mine, model):
            if options.get("frozen"):
                with pytest.raises(dataclasses.FrozenInstanceError, match="'size'"):
                    each.size = 1.0
                with pytest.raises(dataclasses.FrozenInstanceError, match="'size'"):
                    del each.size
            else:
                each.size = 1.0
                assert each.size == 1.0
    for kind in (ours, theirs):
        with pytest.raises(TypeError, match="size"):
            kind()
        if post:
            with pytest.raises(ValueError):  # noqa: PT011 - what a check raises
                kind(size=-1.0)
    parts, as_parts = (inspect.signature(kind.__init__).parameters for kind in (ours, theirs))
    assert [(part.name, part.kind) for part in parts.values()] == [
        (part.name, part.kind) for part in as_parts.values()
    ]
    assert ours.__match_args__ == theirs.__match_args__


@records.dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: "Point | None" = None


@records.dataclass(frozen=True)
class Named(Point):
    name: str = ""


def test_records_are_pickled_hashed_and_inherited():
    point = Point(1.0, Point(2.0))
    assert pickle.loads(pickle.dumps(point)) == point
    assert len({point, Point(1.0, Point(2.0)), Point(1.0)}) == 2
    assert Point(nan) != Point(float("nan"))
    same = nan
    assert Point(same) == Point(same)  # as tuples are: what is one object equals itself
    named = Named(1.0, None, "a")
    assert pickle.loads(pickle.dumps(named)) == named
    assert named != Point(1.0)
    assert repr(named) == "Named(x=1.0, y=None, name='a')"


def test_every_dataclass_of_the_packages_is_a_record():
    """A frozen one of the library could not inherit from a record."""
    compiled = re.compile(r"^ *from dataclasses import .*\bdataclass\b", re.MULTILINE)
    files = [path for path in python_files() if compiled.search(path.read_text("utf-8"))]
    assert [path.name for path in files] == ["records.py"]
