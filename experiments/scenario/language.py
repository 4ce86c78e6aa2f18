"""The language of what-ifs: from text to a :class:`Change`, or to a message that says how to write.

``x`` multiplies what is named: a duration, a bandwidth, a latency, a number. ``compute x0.5`` is
compute in half the time, ``scale_out.bandwidth x2`` twice the bandwidth.
``docs/how-to/write-what-ifs.md`` has a table of all forms, with examples and meanings.

R is a rank or ranks: ``3``, ``0-3,8``. F is a number or a quotient: ``0.5``, ``1/3``. What is
joined by ``and`` applies together, in order.

A change to a part of the network is ``PART EFFECT``. A part is ``link A-B`` (``A->B`` for one
direction), ``nic I of node N``, ``node N``, ``plane N``, ``switch NAME``, or a random share, ``P%
of [TIER] links|nics|switches|nodes``. An effect is ``down``, ``xF`` or ``bandwidth xF``, ``latency
xF``, the last two also for one tier's links only: ``node 5 scale_out.latency x10``. A random share
may end in ``seed S``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from collectives.libraries.planners import parse_rule
from experiments.scenario import cluster, ops
from experiments.scenario.change import (
    CLUSTER_RESOURCES,
    MEMORY_BANDWIDTH,
    Apply,
    Change,
    Changed,
    Edited,
    Faulty,
    Multiplied,
    Part,
    Scaled,
    is_of_links,
)
from experiments.scenario.replicas import OUTERMOST, REPLICAS, Replicas, replicas
from experiments.scenario.words import (
    BATCH,
    HIDDEN,
    LAYERS,
    MICRO_BATCHES,
    SEQUENCE,
    STAGES,
    TENSOR,
    CallsNamed,
    Clause,
    Word,
    calls_named,
    factor_of,
    hint_of,
    ranks_of,
    words_of,
)
from simulator.imbalance import parse_imbalance
from simulator.support.errors import TwofoldError, WhatIfError, shown
from simulator.support.names import nearest, same_name
from simulator.support.quantities import count_of, whole_of
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from topologies.cluster.changed import SETTINGS
from topologies.cluster.schema import split_resource
from topologies.faults import DRAWN, Drawn, Fault, LinkNamed, NicNamed, NodeNamed, SwitchNamed
from topologies.faults import Part as NetworkPart


def parse_change(text: str) -> Change:
    """Parse a what-if.

    Raises WhatIfError if it is none: says what is wrong.

    Examples
    --------
    >>> len(parse_change("rank 3 compute x1.2 and scale_out.bandwidth = 400 Gbit/s").parts)
    2
    """
    try:
        return Change(text, tuple(_part(clause) for clause in _clauses(words_of(text))))
    except TwofoldError as error:
        raise WhatIfError(
            f"what-if {text!r}: {error}; 'twofold what-if --help' lists all forms"
        ) from error


def _clauses(words: list[Word]) -> list[Clause]:
    """Split at ``and``; take the ranks off the front; refuse what would be set twice."""
    parts: list[list[Word]] = [[]]
    for word in words:
        if word.is_one_of("and"):
            parts.append([])
        elif word.is_one_of("%") and len(parts[-1]) == 1:  # 20 % of links
            parts[-1] = [Word(f"{parts[-1][0].text}%")]
        else:
            parts[-1].append(word)
    clauses = []
    for part in parts:
        if part and part[0].is_one_of("rank", "ranks"):
            if len(part) < 3:
                raise WhatIfError("name a rank and what to change, such as 'rank 3 compute x1.2'")
            clauses.append(Clause(tuple(part[2:]), ranks_of(part[1])))
        elif part:
            clauses.append(Clause(tuple(part)))
        else:
            raise WhatIfError("there is nothing to change")
    seen: set[str] = set()
    for clause in clauses:
        first, second, *_ = (*clause.words, Word(""))
        sets = second.is_one_of("=") or first.text.partition("@")[0] in _SETS
        if sets and not first.quoted and first.text in seen:
            raise WhatIfError(f"{first.text} is set twice, and only the last would count")
        seen.add(first.text if sets else "")
    return clauses


_SETS = ("overlap", "accelerator", "cluster", "routing", "transport", "p2p")
"""Verbs of which the last counts."""


def _part(clause: Clause) -> Part:
    first, last = clause.words[0], clause.words[-1]
    if first.is_one_of(*_VERBS):
        return _VERBS[first.text](clause)
    labelled = "" if first.quoted else first.text.partition("@")[0]
    if labelled in _LABELLED:
        return _LABELLED[labelled](clause)
    if first.is_one_of(*_PARTS) or _is_share(first):
        clause.for_all_ranks()
        return _faulty(clause.words)
    if len(clause.words) > 2 and clause.words[1].is_one_of("="):
        return _set(clause)
    if len(clause.words) > 1 and clause.words[-2].is_one_of("imbalance"):
        return _spread(clause)
    if last.is_one_of("drop"):
        return _drop(clause)
    if len(clause.words) == 1:
        raise WhatIfError(f"say what to do with {first.text!r}")
    return _scale(clause)


def _scale(clause: Clause) -> Part:
    *named, last = clause.words
    factor = factor_of(last)
    if named[-1].is_one_of("bytes", "time"):
        clause.for_all_ranks()
        if len(named) > 2:
            raise WhatIfError(f"name one kind before {named[-1].text!r}")
        which = calls_named(named[0]) if len(named) == 2 else CallsNamed()
        if which is None:
            raise WhatIfError(f"{named[0].text!r} is not a kind of call")
        act = ops.scale_bytes if named[-1].text == "bytes" else ops.scale_time
        return Edited(partial(act, named=which, factor=factor))
    name = _only_word(named)
    resource = _resource(name)
    if resource == MEMORY_BANDWIDTH:
        clause.for_all_ranks()
        return cluster.memory_bandwidth(factor)
    if resource is not None:
        clause.for_all_ranks()
        return Multiplied(resource, factor)
    if calls_named(name) is not None:
        raise WhatIfError(f"say 'bytes' or 'time' of {name.text!r}")
    return _scaled(name, factor, clause.ranks)


def _scaled(name: Word, factor: float, ranks: ops.Ranks) -> Part:
    if name.is_one_of(*ops.OPS) and ranks is None:
        return Scaled(ops.OPS[name.text], times=factor, word=name.text)
    return Edited(partial(ops.scale, name=name, factor=factor, ranks=ranks))


def _drop(clause: Clause) -> Part:
    name = _only_word(clause.words[:-1])
    if _resource(name) is not None:
        raise WhatIfError(f"{name.text!r} cannot be dropped")
    which = calls_named(name)
    if which is not None:
        clause.for_all_ranks()
        return Edited(partial(ops.drop_calls, named=which))
    if name.is_one_of("host", ops.GAPS, ops.LAUNCH):
        return _scaled(name, 0.0, clause.ranks)
    return Edited(partial(ops.drop, name=name, ranks=clause.ranks))


def _spread(clause: Clause) -> Part:
    clause.for_all_ranks()
    *named, _, how = clause.words
    which = calls_named(named[0]) if len(named) == 1 else None
    if which is None or which.kind not in (None, "all_to_all"):
        raise WhatIfError("only all_to_all has an imbalance; name it, with or without a label")
    imbalance = parse_imbalance(how.text)
    return Edited(partial(ops.spread_unevenly, named=which, imbalance=imbalance))


def _set(clause: Clause) -> Part:
    clause.for_all_ranks()
    name, _, *words = clause.words
    text = " ".join(word.text for word in words)
    setting = None if name.quoted else same_name(name.text, SETTINGS)
    if setting is not None:
        return Edited(partial(cluster.other_setting, name=setting, text=text), is_network=True)
    resource = _resource(name)
    if resource is None:
        raise WhatIfError(f"{name.text!r} is not a resource of the cluster")
    value = cluster.parse_value(resource, text)
    return Edited(partial(cluster.set_resource, resource=resource, value=value))


def _fuse(clause: Clause) -> Part:
    _, name, *rest = clause.words if len(clause.words) > 1 else (*clause.words, Word(""))
    if not name.text or len(rest) > 1:
        raise WhatIfError("name the kernels to fuse, in quotes if there are spaces")
    factor = factor_of(rest[0]) if rest else 1.0
    return Edited(partial(ops.fuse, name=name, factor=factor, ranks=clause.ranks))


def _algorithm(clause: Clause) -> Part:
    clause.for_all_ranks()
    return Edited(partial(ops.force, rule=parse_rule(clause.rest), text=clause.rest))


def _one_of(wrong: str, changes: Mapping[str, Apply]) -> Callable[[Clause], Part]:
    """Make a parser for a verb that one of a few texts follows."""

    def read(clause: Clause) -> Part:
        clause.for_all_ranks()
        if clause.rest not in changes:
            raise WhatIfError(wrong.format(clause.rest))
        return Edited(changes[clause.rest])

    return read


def _accelerator(clause: Clause) -> Part:
    clause.for_all_ranks()
    if not clause.rest:
        raise WhatIfError("name an accelerator or a cluster")
    kind = clause.words[0].text.partition("@")[2] or None
    return Edited(partial(cluster.accelerate, chip=cluster.chip_named(clause.rest), kind=kind))


def _network(
    verb: str, change: Callable[..., Changed], parse: Callable[[str], object] = str
) -> Callable[[Clause], Part]:
    """Make a parser for a verb that is followed by text."""

    def read(clause: Clause) -> Part:
        clause.for_all_ranks()
        if not clause.rest:
            raise WhatIfError(f"say which {verb}")
        parsed = parse(clause.rest)
        return Edited(lambda scenario: change(scenario, parsed), is_network=True)

    return read


def _replicas(clause: Clause) -> Part:
    clause.for_all_ranks()
    first, *rest = clause.words
    label = first.text.partition("@")[2]
    outermost = bool(rest) and rest[-1].is_one_of(OUTERMOST)
    factors = rest[:-1] if outermost else rest
    if len(factors) != 1 or first.text.endswith("@"):
        raise WhatIfError(f"write how many times the replicas, as in '{REPLICAS} x4'")
    request = Replicas(factor_of(factors[0]), label or None, outermost)
    return Edited(partial(replicas, request=request))


def _size(clause: Clause) -> Part:
    clause.for_all_ranks()
    what, *rest = [word.text for word in clause.words]
    numbers = [count_of(number) for number in (*rest[:1], *rest[2:])]
    if len(numbers) != 2 or rest[1] != "->" or not (numbers[0] and numbers[1]):
        raise WhatIfError(f"write the present and the new number, as in '{what} 4 -> 8'")
    from experiments.scenario.sizes import Size, resized  # other what-ifs do without

    return resized(Size(what, numbers[0], numbers[1]))


_ACCELERATOR = "accelerator"
_VERBS: dict[str, Callable[[Clause], Part]] = {
    "fuse": _fuse,
    "algorithm": _algorithm,
    "overlap": _one_of(
        "overlap is one of none, full, not {!r}", {"none": ops.no_overlap, "full": ops.full_overlap}
    ),
    "one": _one_of(
        "'one' begins 'one call per rank'; quote the name of an op",
        {"call per rank": ops.one_call_at_a_time},
    ),
    "stragglers": _one_of(
        "stragglers are 'removed'; to add one, write 'rank 3 compute x1.2'",
        {"removed": ops.without_stragglers},
    ),
    **dict.fromkeys((LAYERS, MICRO_BATCHES, STAGES, HIDDEN, BATCH, SEQUENCE, TENSOR), _size),
    _ACCELERATOR: _accelerator,
    "cluster": _network("cluster", cluster.other_cluster, cluster.cluster_named),
    "topology": _network("topology", cluster.other_topology),
    "routing": _network("routing", cluster.other_routing),
    "transport": _network("transport", partial(cluster.other_setting, name="scale_out.transport")),
    "p2p": _network("level of peer access", partial(cluster.other_setting, name="library.p2p")),
}

_LABELLED: dict[str, Callable[[Clause], Part]] = {REPLICAS: _replicas, _ACCELERATOR: _accelerator}
"""Verbs that may have a label after the first word."""


def _only_word(named: "list[Word] | tuple[Word, ...]") -> Word:
    """Return the only word; refuse none and several."""
    if len(named) == 1 and named[0].text:
        return named[0]
    text = " ".join(word.text for word in named)
    verbs = nearest(named[0].text, tuple(_VERBS)) if named else []
    hint = f"did you mean {verbs[0]!r}? " if verbs else ""
    raise WhatIfError(f"{text!r} is not one name; {hint}put quotes around a name with spaces")


def _resource(name: Word) -> str | None:
    """Return the value of the cluster that a word spells; None for the name of an op.

    A word that begins like a resource and is none is refused.
    """
    if name.quoted:
        return None
    plain, kind = split_resource(name.text)
    resource = same_name(plain, (*CLUSTER_RESOURCES, MEMORY_BANDWIDTH))
    if resource == MEMORY_BANDWIDTH and kind is not None:
        raise WhatIfError(f"{MEMORY_BANDWIDTH} is that of all kinds of node")
    if resource is not None and kind is not None:
        tier, _, field = resource.partition(".")
        return f"{tier}@{kind}.{field}"
    if resource is None and kind is None and is_of_links(name.text):
        return name.text  # of links that a graph names, if the cluster has such
    tiers = {name_of_resource.partition(".")[0] for name_of_resource in CLUSTER_RESOURCES}
    if resource is None and same_name(plain.partition(".")[0], tiers):
        hint = hint_of(plain, tuple(CLUSTER_RESOURCES))
        raise WhatIfError(f"{name.text!r} is not a resource of a cluster{hint}")
    return resource


_DOWN = "down"
_PARTS = ("link", "nic", "node", "plane", "switch")
"""Words that begin a change to a part of the network; a share of parts does, too."""
_TIERS = (SCALE_UP, SCALE_OUT, PCIE)
"""Resources that are accepted in any spelling; a graph may name others."""
_PERCENT = re.compile(r"(\d+\.?\d*|\.\d+)%")
_VALUES = ("bandwidth", "latency")
_WRITE = (
    "write, for example, 'link leaf0-spine1 down', 'nic 3 of node 2 x0.5' or 'node 5 latency x10'"
)


def _faulty(words: Sequence[Word]) -> Faulty:
    """Parse a change to a part of the network, such as ``nic 3 of node 2 latency x10``."""
    seed = None
    if len(words) > 2 and words[-2].is_one_of("seed"):
        seed = whole_of(words[-1].text)
        if seed is None or seed < 0:
            raise WhatIfError(f"seed {shown(words[-1].text)} is not a whole number")
        words = words[:-2]
    if len(words) < 2:
        raise WhatIfError(f"say which {words[0].text} and what happens to it; {_WRITE}")
    *named, effect = words
    factor, value, tier = None, "bandwidth", None
    if effect.is_one_of("drop"):
        raise WhatIfError(f"a part of the network is {_DOWN!r}, it cannot be dropped")
    if not effect.is_one_of(_DOWN):
        if not effect.quoted and not re.match(r"x[\d.]", effect.text):
            text = f"{effect.text!r} is neither {_DOWN!r} nor a factor such as x0.5"
            raise WhatIfError(f"{text}; {_WRITE}")
        if effect.text in ("x0", "x0.0"):
            raise WhatIfError(f"for a part without bandwidth write {_DOWN!r}")
        factor = factor_of(effect)
        last = named[-1]
        of_tier, _, number = last.text.rpartition(".")
        if len(named) > 1 and not last.quoted and number in _VALUES:
            value, tier = number, (same_name(of_tier, _TIERS) or of_tier) if of_tier else None
            named = named[:-1]
    part = _share(named, seed) if _is_share(named[0]) else _network_part(named)
    if seed is not None and not isinstance(part, Drawn):
        raise WhatIfError("a seed needs a random draw, such as '1% of links down seed 3'")
    return Faulty(Fault(part, factor, "latency" if value == "latency" else "bandwidth", tier))


def _is_share(word: Word) -> bool:
    return not word.quoted and _PERCENT.fullmatch(word.text) is not None


def _share(named: Sequence[Word], seed: int | None) -> Drawn:
    """Parse ``1% of links``, ``5% of scale_out links``."""
    match = _PERCENT.fullmatch(named[0].text)
    percent = float(match[1]) if match else 0.0
    if not 0 < percent <= 100:
        raise WhatIfError(f"{named[0].text} is not a share between 0 and 100 %")
    words = [word.text for word in named[1:]]
    words = words[1:] if words[:1] == ["of"] else words
    *tiers, noun = words or [""]
    of = noun if noun in DRAWN else _SINGULAR.get(noun)
    if of is None:
        raise WhatIfError(f"{noun!r} is not one of {', '.join(DRAWN)}{hint_of(noun, DRAWN)}")
    if len(tiers) > 1:
        raise WhatIfError(f"{' '.join(tiers)!r} is not the name of one resource of links")
    tier = (same_name(tiers[0], _TIERS) or tiers[0]) if tiers else None
    return Drawn(percent, of, tier, seed)


_SINGULAR = {"link": "links", "nic": "nics", "switch": "switches", "node": "nodes"}


def _network_part(named: Sequence[Word]) -> NetworkPart:
    """Parse a part of the network by its name or its number: ``node 5``, ``nic 3 of node 2``."""
    noun, *words = (word.text for word in named)
    match noun, words:
        case "link" | "switch", [_, *_]:
            name = " ".join(words)
            return LinkNamed(name) if noun == "link" else SwitchNamed(name)
        case "link", _:
            raise WhatIfError(f"name both ends of the link; {_WRITE}")
        case "switch", _:
            raise WhatIfError("name the switch, as in 'switch spine1 down'")
        case "plane", [number]:
            return SwitchNamed(f"plane{_number(number, noun)}")
        case "plane", _:
            raise WhatIfError("write one plane by its number, as in 'plane 1 down'")
        case "node", [number]:
            return NodeNamed(_number(number, noun))
        case "node", _:
            raise WhatIfError(f"write one node by its number; {_WRITE}")
        case _, [number, "of", "node", node]:
            return NicNamed(_number(node, "node"), _number(number, "NIC"))
    raise WhatIfError("write a NIC with its node, as in 'nic 3 of node 2 down'")


def _number(text: str, what: str) -> int:
    number = count_of(text)
    if number is None:
        raise WhatIfError(f"{shown(text)} is not the number of a {what}")
    return number
