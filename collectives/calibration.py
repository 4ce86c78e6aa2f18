"""What a trace showed of calls of one kind, put into how they are carried out.

A library chooses without it: it is the call chosen that takes longer or shorter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.networks import Number
from simulator.schedule import Plan


class Multiples(Protocol):
    """Multiples of what a cluster file says: of the software's part, and of links by resource."""

    @property
    def overhead(self) -> float:
        """Of the overhead of a call and of its steps."""

    @property
    def latency(self) -> Mapping[str, float]:
        """Of the latencies of links."""

    @property
    def bandwidth(self) -> Mapping[str, float]:
        """Of the bandwidths of links."""


def calibrated(plan: Plan, known: Multiples | None) -> Plan:
    """Return a plan with what is known of calls of its kind."""
    if known is None:
        return plan
    return replace(
        plan,
        overhead=plan.overhead * known.overhead,
        step_latency=plan.step_latency * known.overhead,
        latency_factor=known.latency,
        bandwidth_factor=known.bandwidth,
    )


def chosen(
    time: Sequence[Number], software: Sequence[Number], moving: Sequence[Number], overhead: float
) -> NDArray[np.float64]:
    """Return what the fastest of some plans takes on each network, calibrated.

    ``time`` of each plan (s) decides which is the fastest; ``software`` is its part that
    ``overhead`` multiplies, ``moving`` the rest, calibrated.
    """
    alike = np.broadcast_arrays(np.empty(1), *time, *software, *moving)[1:]
    times, own, on_links = np.stack(alike).reshape(3, len(time), -1)
    fastest = times.argmin(axis=0), np.arange(times.shape[1])
    found: NDArray[np.float64] = overhead * own[fastest] + on_links[fastest]
    return found
