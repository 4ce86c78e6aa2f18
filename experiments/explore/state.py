"""What is set on the page, as the address holds it and as what-ifs say it.

The address is all there is of a state: what stands behind its ``?`` can be bookmarked, shared and
gone back to. A state is an ordered list of what-ifs (:mod:`experiments.scenario.language`): another
cluster, topologies, routing, algorithms, what was written by hand, then sliders. So whatever the
page shows, a command with these what-ifs answers too.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isnan
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from experiments.scenario.change import is_of_links
from experiments.scenario.resources import BY_NAME, RANKS, check_resource
from experiments.scenario.words import check_factor
from experiments.settings import Settings
from simulator.support.errors import SettingsError, TwofoldError, WhatIfError, shown
from simulator.support.quantities import count_of, number_of

CLUSTER, TOPOLOGY, ROUTING = "cluster", "topology", "routing"
ALGORITHM, WHAT_IF = "algorithm", "what-if"
FIRST_RANK = "first-rank"
_WORDS = (CLUSTER, TOPOLOGY, ROUTING, ALGORITHM, WHAT_IF, FIRST_RANK)
_SEVERAL = (TOPOLOGY, ALGORITHM, WHAT_IF)
"""Words of the address, and those that may be repeated; all others are resources."""
_LONGEST = 20_000
"""Characters of an address that are read: browsers and servers take no more in practice."""
_MOST = 20
"""Topologies, algorithms and what-ifs of a state: each is applied whenever another is added."""
_INVERSE = ("latency", *RANKS)
"""Resources of which twice as good is half of what a what-if multiplies: times."""


@dataclass(frozen=True, slots=True)
class State:
    """What is set, other than as recorded.

    Parameters
    ----------
    cluster
        Whose network the step is on, a name of the catalogue or a file; "" for the question's.
    topologies
        ``[TIER=]TOPOLOGY``, as ``compare --topology`` takes them.
    routing
        Policy of the fabric between nodes; "" for its own.
    algorithms
        Rules, as ``--algorithm`` takes them.
    what_ifs
        Changes written by hand.
    factors
        How many times as good resources are, by name, in the order of names; none is 1.
    first_rank
        The first of the ranks whose timeline is shown.

    Raises
    ------
    SettingsError
        If a factor cannot be, or a name is not a resource.

    Examples
    --------
    >>> state = parse_state("scale_out.latency=3&what-if=overlap+none")
    >>> state.changes()
    ('overlap none', 'scale_out.latency x1/3')
    >>> state.address()
    'what-if=overlap+none&scale_out.latency=3'
    """

    cluster: str = ""
    topologies: tuple[str, ...] = ()
    routing: str = ""
    algorithms: tuple[str, ...] = ()
    what_ifs: tuple[str, ...] = ()
    factors: tuple[tuple[str, float], ...] = ()
    first_rank: int = 0

    def __post_init__(self) -> None:
        for name in (CLUSTER, ROUTING):
            object.__setattr__(self, name, " ".join(getattr(self, name).split()))
        for name in ("topologies", "algorithms", "what_ifs"):
            texts = (" ".join(text.split()) for text in getattr(self, name))
            object.__setattr__(self, name, tuple(filter(None, texts)))
        count = len(self.topologies) + len(self.algorithms) + len(self.what_ifs)
        if count > _MOST:
            raise SettingsError(f"{count} changes at a time; the limit on a page is {_MOST}")
        factors: dict[str, float] = {}
        for name, factor in self.factors:
            resource = _resource(name)
            try:
                check_factor(factor)
            except TwofoldError as error:
                raise SettingsError(f"{resource}: {error}") from error
            if resource in factors:
                raise SettingsError(f"{resource} is given twice, the second time as {shown(name)}")
            factors[resource] = float(factor)
        changed = sorted(entry for entry in factors.items() if entry[1] != 1)
        object.__setattr__(self, "factors", tuple(changed))
        if self.first_rank < 0:
            raise SettingsError(f"{FIRST_RANK}: {self.first_rank} is not a rank")

    def address(self) -> str:
        """Return what stands behind the ``?`` of the page's address."""
        words: list[tuple[str, str]] = [(CLUSTER, self.cluster), (ROUTING, self.routing)]
        words += [(TOPOLOGY, text) for text in self.topologies]
        words += [(ALGORITHM, text) for text in self.algorithms]
        words += [(WHAT_IF, text) for text in self.what_ifs]
        words += [(name, say_factor(factor)) for name, factor in self.factors]
        words.append((FIRST_RANK, f"{self.first_rank or ''}"))
        return urlencode([word for word in words if word[1]])

    def changes(self) -> tuple[str, ...]:
        """Return what is set as what-ifs, in the order in which they apply."""
        return (*self.structure(), *self.numbers())

    def without(self, resource: str) -> "State":
        """Return the state with one slider reset."""
        factors = tuple((name, factor) for name, factor in self.factors if name != resource)
        return replace(self, factors=factors)

    def structure(self) -> tuple[str, ...]:
        """Return those that change the network's links or the step's ops, not only numbers."""
        return (
            *([f"cluster {_quoted(self.cluster)}"] if self.cluster else []),
            *(f"topology {_quoted(text)}" for text in self.topologies),
            *([f"routing {_quoted(self.routing)}"] if self.routing else []),
            *(f"algorithm {text}" for text in self.algorithms),
            *self.what_ifs,
            *(_slid(name, factor) for name, factor in self.factors if not is_number(name)),
        )

    def numbers(self) -> tuple[str, ...]:
        """Return the others: what sliders make of numbers of links and of ops."""
        return tuple(_slid(name, factor) for name, factor in self.factors if is_number(name))

    def factor(self, resource: str) -> float:
        """Return the factor of a resource."""
        return dict(self.factors).get(resource, 1.0)


def is_number(resource: str) -> bool:
    """Whether more of a resource leaves links and ops as they are, but for their numbers."""
    return resource in RANKS or is_of_links(resource)


def say_factor(value: float) -> str:
    """Write a number so that the same is read again, a whole one without its ``.0``.

    Examples
    --------
    >>> say_factor(2.0), say_factor(0.1), say_factor(1e-05)
    ('2', '0.1', '1e-05')
    """
    return repr(float(value)).removesuffix(".0")


def parse_state(address: str) -> State:
    """Read what stands behind the ``?`` of an address.

    Raises SettingsError if a word is unknown, given twice, or has a value that it cannot have.
    """
    if len(address) > _LONGEST:
        raise SettingsError(f"the address has {len(address):,} characters; at most {_LONGEST:,}")
    words = parse_qsl(address.removeprefix("?"), keep_blank_values=True)
    by_name: dict[str, list[str]] = {}
    for name, value in words:
        by_name.setdefault(name, []).append(value)
    for name, values in by_name.items():
        if len(values) > 1 and name not in _SEVERAL:
            raise SettingsError(f"the address has {len(values)} values of {shown(name)}: keep one")
    single = {name: values[-1] for name, values in by_name.items() if name not in _SEVERAL}
    many = {name: tuple(by_name.get(name, ())) for name in _SEVERAL}
    factors = []
    for name, text in single.items():
        if name not in _WORDS:
            factors.append((_resource(name), number_of(text)))
            if isnan(factors[-1][1]):
                raise SettingsError(f"{name}: {shown(text)} is not a number")
    first_rank = count_of(single.get(FIRST_RANK, "0"))
    if first_rank is None:
        raise SettingsError(f"{FIRST_RANK}: {shown(single[FIRST_RANK])} is not a rank")
    return State(
        cluster=single.get(CLUSTER, ""),
        topologies=many[TOPOLOGY],
        routing=single.get(ROUTING, ""),
        algorithms=many[ALGORITHM],
        what_ifs=many[WHAT_IF],
        factors=tuple(factors),
        first_rank=first_rank,
    )


def _resource(name: str) -> str:
    """Return the resource that a word of the address names."""
    try:
        resource = check_resource(name)
        if resource in BY_NAME:
            raise WhatIfError(f"{resource} has no slider: write a what-if")
    except TwofoldError as error:
        raise SettingsError(f"{error}; or one of {', '.join(_WORDS)}") from error
    return resource


def _slid(resource: str, factor: float) -> str:
    """Write a slider as a what-if: a time is divided by what its resource is multiplied by."""
    inverse = resource.rpartition(".")[2] in _INVERSE
    return f"{resource} x{'1/' if inverse else ''}{say_factor(factor)}"


def _quoted(text: str) -> str:
    """Put quotes around a name with spaces, which is one word."""
    if " " not in text:
        return text
    return f"'{text}'" if '"' in text else f'"{text}"'


_DOOR = "twofold"
"""The command, and the module: no package imports it, and this one only names it."""
_ANSWERS = ("utility", "explain")
"""Questions that together answer what the page shows: utilities; critical path and ranks."""
_OPTIONS = {"algorithms": "--algorithm", "what_ifs": "--what-if"}
"""Options of settings that are called otherwise, and may be repeated."""
_NOT_ALL = {"workers": ("utility",)}
"""Settings that only some of these questions take."""


def settings_with(settings: Settings, engine: str, changes: Sequence[str]) -> Settings:
    """Return the settings of a question with the changes of a state behind its own."""
    return replace(settings, engine=engine, what_ifs=(*settings.what_ifs, *changes))


def command(trace: Path | str, cluster: Path | str | None, settings: Settings) -> str:
    """Return the commands with the same answers, one per line."""
    lines = []
    for name in _ANSWERS:
        words = [_DOOR, name, str(trace)]
        words += [] if cluster is None else ["--cluster", str(cluster)]
        for field, value in _changed(settings):
            if name not in _NOT_ALL.get(field, _ANSWERS):
                continue
            option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
            if isinstance(value, tuple):
                words += [word for item in value for word in (option, str(item))]
            elif isinstance(value, bool):
                words.append(option if value else f"--no-{option.removeprefix('--')}")
            else:
                words += [option, str(value)]
        lines.append(shlex.join(words))
    return "\n".join(lines)


def python(trace: Path | str, cluster: Path | str | None, settings: Settings) -> str:
    """Return the same in Python."""
    where = [repr(str(path)) for path in (trace, cluster) if path is not None]
    arguments = []
    for name, value in _changed(settings):
        text = repr(str(value) if isinstance(value, Path) else value)
        if isinstance(value, tuple):
            text = f"[{', '.join(repr(item) for item in value)}]"
        arguments.append(f"    {name}={text},")
    lines = [f"import {_DOOR} as tf", "", "settings = tf.Settings(", *arguments, ")"]
    lines += [f"{name} = tf.{name}({', '.join(where)}, settings=settings)" for name in _ANSWERS]
    return "\n".join([*lines, *(f"print({name})" for name in _ANSWERS), ""])


def _changed(settings: Settings) -> list[tuple[str, object]]:
    """List the settings that are not as by default; the engine is always said."""
    values = [(setting.name, getattr(settings, setting.name)) for setting in fields(settings)]
    usual = Settings()
    return [
        (name, value) for name, value in values if name == "engine" or value != getattr(usual, name)
    ]
