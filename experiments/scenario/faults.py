"""What-ifs on single parts of the network, parsed from words: ``link leaf0-spine1 down``.

The form is ``PART EFFECT``. A part is ``link A-B`` (``A->B`` for one direction), ``nic I of node
N``, ``node N``, ``plane N``, ``switch NAME``, or a random share, ``P% of [TIER]
links|nics|switches|nodes``. An effect is ``down``, ``xF`` or ``bandwidth xF``, ``latency xF``, the
last two also for one tier's links only: ``node 5 scale_out.latency x10``. A random share may end in
``seed S``.
"""

import re
from collections.abc import Callable, Sequence

from experiments.scenario.change import Faulty
from experiments.scenario.words import Word, factor_of, near
from simulator.support.errors import WhatIfError, shown
from simulator.support.names import same_name
from simulator.support.quantities import count_of, whole_of
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from topologies.faults import DRAWN, Drawn, Fault, LinkNamed, NicNamed, NodeNamed, Part, SwitchNamed

DOWN = "down"
TIERS = (SCALE_UP, SCALE_OUT, PCIE)
"""Resources that are accepted in any spelling; a graph may name others."""
_PERCENT = re.compile(r"(\d+\.?\d*|\.\d+)%")
_VALUES = ("bandwidth", "latency")
_WRITE = (
    "write, for example, 'link leaf0-spine1 down', 'nic 3 of node 2 x0.5' or 'node 5 latency x10'"
)


def begins(word: Word) -> bool:
    """Whether a word begins a change to a part of the network."""
    return word.is_one_of(*_READ) or _is_share(word)


def faulty(words: Sequence[Word]) -> Faulty:
    """Parse a change to a part of the network.

    Raises WhatIfError if it is none; the message gives the form.

    Examples
    --------
    >>> from experiments.scenario.words import words_of
    >>> print(faulty(words_of("nic 3 of node 2 latency x10")).fault)
    nic 3 of node 2 latency x10
    """
    words, seed = _without_seed(words)
    named, factor = _effect(words)
    value, tier = "bandwidth", None
    if factor is not None and len(named) > 1 and (found := _value(named[-1])):
        (value, tier), named = found, named[:-1]
    first = named[0]
    part = _share(named, seed) if _is_share(first) else _READ[first.text](named)
    if seed is not None and not isinstance(part, Drawn):
        raise WhatIfError("a seed needs a random draw, such as '1% of links down seed 3'")
    return Faulty(Fault(part, factor, "latency" if value == "latency" else "bandwidth", tier))


def _without_seed(words: Sequence[Word]) -> tuple[Sequence[Word], int | None]:
    if len(words) > 2 and words[-2].is_one_of("seed"):
        seed = whole_of(words[-1].text)
        if seed is None or seed < 0:
            raise WhatIfError(f"seed {shown(words[-1].text)} is not a whole number")
        return words[:-2], seed
    return words, None


def _effect(words: Sequence[Word]) -> tuple[Sequence[Word], float | None]:
    """Split off the effect on the part: a factor, None if it is down."""
    if len(words) < 2:
        raise WhatIfError(f"say which {words[0].text} and what happens to it; {_WRITE}")
    *named, last = words
    if last.is_one_of(DOWN):
        return named, None
    if last.is_one_of("drop"):
        raise WhatIfError(f"a part of the network is {DOWN!r}, it cannot be dropped")
    if not last.quoted and not re.match(r"x[\d.]", last.text):
        raise WhatIfError(f"{last.text!r} is neither {DOWN!r} nor a factor such as x0.5; {_WRITE}")
    if last.text in ("x0", "x0.0"):
        raise WhatIfError(f"for a part without bandwidth write {DOWN!r}")
    return named, factor_of(last)


def _value(word: Word) -> tuple[str, str | None] | None:
    """Parse ``latency`` or ``scale_out.latency``; None if it is neither."""
    tier, _, value = word.text.rpartition(".")
    if word.quoted or value not in _VALUES:
        return None
    return value, (same_name(tier, TIERS) or tier) if tier else None


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
        hint = near(noun, DRAWN)
        meant = f"; did you mean {hint!r}?" if hint else ""
        raise WhatIfError(f"{noun!r} is not one of {', '.join(DRAWN)}{meant}")
    if len(tiers) > 1:
        raise WhatIfError(f"{' '.join(tiers)!r} is not the name of one resource of links")
    tier = (same_name(tiers[0], TIERS) or tiers[0]) if tiers else None
    return Drawn(percent, of, tier, seed)


_SINGULAR = {"link": "links", "nic": "nics", "switch": "switches", "node": "nodes"}


def _link(named: Sequence[Word]) -> LinkNamed:
    if len(named) < 2:
        raise WhatIfError(f"name both ends of the link; {_WRITE}")
    return LinkNamed(" ".join(word.text for word in named[1:]))


def _switch(named: Sequence[Word]) -> SwitchNamed:
    if len(named) < 2:
        raise WhatIfError("name the switch, as in 'switch spine1 down'")
    return SwitchNamed(" ".join(word.text for word in named[1:]))


def _plane(named: Sequence[Word]) -> SwitchNamed:
    if len(named) != 2:
        raise WhatIfError("write one plane by its number, as in 'plane 1 down'")
    return SwitchNamed(f"plane{_number(named[1], 'plane')}")


def _node(named: Sequence[Word]) -> NodeNamed:
    if len(named) != 2:
        raise WhatIfError(f"write one node by its number; {_WRITE}")
    return NodeNamed(_number(named[1], "node"))


def _nic(named: Sequence[Word]) -> NicNamed:
    words = [word.text for word in named]
    if len(words) != 5 or words[2:4] != ["of", "node"]:
        raise WhatIfError("write a NIC with its node, as in 'nic 3 of node 2 down'")
    return NicNamed(_number(named[4], "node"), _number(named[1], "NIC"))


def _number(word: Word, what: str) -> int:
    number = count_of(word.text)
    if number is None:
        raise WhatIfError(f"{shown(word.text)} is not the number of a {what}")
    return number


_READ: dict[str, Callable[[Sequence[Word]], Part]] = {
    "link": _link,
    "nic": _nic,
    "node": _node,
    "plane": _plane,
    "switch": _switch,
}
