"""What a library finds where it runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Where ranks sit, and what a library's constants depend on.

    ``domains`` is the scale-up domain of every position of the topology. ``in_network``: the
    switches of a domain can add. ``generation`` of the accelerator, ``cpu`` of the host and
    ``version`` of the library choose its constants. ``overhead`` (s) is paid once per call by
    libraries that have no model of their own.
    """

    domains: Ranks
    generation: str = ""
    cpu: str = ""
    version: str = ""
    in_network: bool = False
    overhead: float = 0.0
