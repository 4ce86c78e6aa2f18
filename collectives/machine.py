"""What a library finds where it runs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Where ranks sit, and what a library's constants depend on.

    ``domains`` is the scale-up domain of every position of the topology. ``in_network``: the
    switches of a domain can add. ``generation`` of the accelerator, ``cpu`` of the host and
    ``version`` of the library choose its constants. ``overhead`` (s) is paid once per call by
    libraries that have no model of their own. ``net_message`` (s) is what a NIC takes per
    message, where a fabric is known to differ from the library's constant. ``known`` is what
    planning has found out so far, by topology and group, so that the next size is planned sooner;
    it changes no result.
    """

    domains: Ranks
    generation: str = ""
    cpu: str = ""
    version: str = ""
    in_network: bool = False
    overhead: float = 0.0
    net_message: float | None = None
    known: dict[object, Any] = field(default_factory=dict, repr=False)
