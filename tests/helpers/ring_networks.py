"""Networks on which rings have closed forms, and the plans and times of calls on them."""

from math import prod

import numpy as np

from collectives import Machine, plan
from helpers.calls import call_of
from helpers.schedules import SIZE
from simulator.costing.link_load import cost, plan_loads
from simulator.topology import Link, topology

B, ALPHA = 50e9, 1e-6


def torus_network(shape, *, cut=False, alpha=ALPHA):
    grid = np.arange(prod(shape)).reshape(shape)
    pairs = {
        (int(one), int(other))
        for axis in range(grid.ndim)
        for way in (-1, 1)
        for one, other in zip(grid.ravel(), np.roll(grid, way, axis).ravel(), strict=True)
        if one != other
    }
    pairs -= {(0, 1), (1, 0)} if cut else set()
    return topology("torus", grid.size, [Link(*ends, B, alpha) for ends in sorted(pairs)])


def full_mesh(n):
    links = [Link(one, other, B, ALPHA) for one in range(n) for other in range(n) if one != other]
    return topology("mesh", n, links)


def chosen(kind, network, algorithm=None, *, ranks=None, size=SIZE):
    ranks = range(network.ranks) if ranks is None else ranks
    machine = Machine(np.zeros(network.ranks, dtype=np.int32))
    return plan(call_of(kind, ranks, size), network, machine, algorithm)


def time_of(there, network, ranks=None, *, size=SIZE):
    positions = np.arange(network.ranks) if ranks is None else np.array(ranks)
    return cost(plan_loads(there, positions.astype(np.int32), size, network))
