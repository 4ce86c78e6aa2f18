"""Calls by themselves, as planners take them."""

from simulator.workload import Call, Group


def call_of(kind, ranks, size, label=""):
    """A call of a group of ranks, in this order."""
    return Call(kind, Group(tuple(int(rank) for rank in ranks), label), size)
