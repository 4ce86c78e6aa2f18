"""Names and seeds of routing policies, which a topology holds as data.

Where several next hops are as near to a message's target, a policy says which of them it takes:

============  =====================================================================================
``ecmp``      one, by a hash of source, target and switch (RFC 2992); every pair keeps its path
``static``    one, by a hash of target and switch: a forwarding table that knows no source
``d_mod_k``   one, by the digits of the target's number: E. Zahavi, "D-Mod-K Routing Providing
              Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", CCIT Report 776,
              Technion 2010
``spray``     all of them alike: packets are spread one by one
``adaptive``  all of them, in proportion to what they can carry on; and a part of the message over
              detours, where that takes bytes off the busiest link
``minimal``   all of them alike
``valiant``   all of them alike, first to each group, or router, in between: L. G. Valiant, "A
              scheme for fast parallel communication", SIAM J. Computing 11 (1982)
============  =====================================================================================

Where routers are in groups (:attr:`Routing.group`) a cable between two groups counts as longer than
two cables inside, under every policy: least paths take one of them. Detours are Valiant's, so
without groups ``adaptive`` has none, and ``valiant`` does not exist.
"""

from dataclasses import dataclass, field

from simulator.support.arrays import Floats, Ints
from simulator.support.errors import TopologyError
from simulator.support.names import did_you_mean

POLICIES = ("ecmp", "static", "d_mod_k", "spray", "adaptive", "minimal", "valiant")
"""Every policy by its name."""
HASHED = ("ecmp", "static")
"""Those that choose by a hash, of which a seed is another draw."""
DIVIDING = ("spray", "adaptive", "minimal", "valiant")
"""Those under which a message may take several paths."""


@dataclass(frozen=True, eq=False)
class Routing:
    """How switches choose among next hops that are equally near to the target.

    Parameters
    ----------
    policy
        One of :data:`POLICIES`.
    resource
        The policy is that of the switches all of whose links out are of this resource, "" for all
        nodes. Elsewhere, at ranks with several NICs for instance, a hash chooses.
    seed
        Of the hash: another one is another draw of all paths.
    flows
        How many flows ``ecmp`` hashes by themselves of each message, which carry as much each: the
        channels of a connection and the queue pairs that its data are split over.
    group
        Of each node the group of routers that it belongs to, -1 for none, shape ``(nodes,)``. In
        a single group every router may be the middle of a detour, else every group.
    capacity
        What adaptive switches think each link can carry, in proportion to each other, shape
        ``(links,)``; its bandwidth if not given.
    slowed
        What faults left of the bandwidth of each link, 1 of a sound one, shape ``(links,)``.
        Messages that are divided avoid what is slower.

    Raises
    ------
    TopologyError
        If the policy is unknown, the seed is negative, there are no flows or several of another
        policy than ``ecmp``, or ``valiant`` has no groups.

    Examples
    --------
    >>> Routing("adaptiv")
    Traceback (most recent call last):
        ...
    simulator.support.errors.TopologyError: 'adaptiv' is not a routing policy; did you mean adaptive? there are ecmp, static, d_mod_k, spray, adaptive, minimal, valiant
    """  # noqa: E501

    policy: str = "ecmp"
    resource: str = ""
    seed: int = 0
    flows: int = 1
    group: Ints | None = field(default=None, repr=False)
    capacity: Floats | None = field(default=None, repr=False)
    slowed: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            hint = did_you_mean(self.policy, POLICIES)
            raise TopologyError(
                f"{self.policy!r} is not a routing policy; {hint}there are {', '.join(POLICIES)}"
            )
        if self.seed < 0:
            raise TopologyError(f"seed {self.seed} of a routing is negative; give 0 or more")
        if self.flows < 1 or (self.flows > 1 and self.policy != "ecmp"):
            raise TopologyError(
                f"{self.flows} flows of a message under {self.policy}: give 1, or more under ecmp"
            )
        if self.policy == "valiant" and self.group is None:
            raise TopologyError("routing valiant needs groups of routers, and the network has none")

    @property
    def divides(self) -> bool:
        """Whether a message may take several paths."""
        return self.policy in DIVIDING or self.flows > 1

    @property
    def detours(self) -> bool:
        """Whether a message may take a path that is not of least metric."""
        return self.group is not None and self.policy in ("adaptive", "valiant")
