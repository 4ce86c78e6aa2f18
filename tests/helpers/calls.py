"""Calls by themselves, as planners take them, and networks to ask about them together."""

import numpy as np

from simulator.calls import Call, Group
from simulator.costing.stacked_networks import Networks


def call_of(kind, ranks, size, label=""):
    """A call of a group of ranks, in this order."""
    return Call(kind, Group(tuple(int(rank) for rank in ranks), label), size)


def stacked(networks):
    """Several networks of one graph; links that agree in all of them are a class."""
    graph = networks[0]
    bandwidth = np.stack([network.bandwidth for network in networks], axis=1)
    latency = np.stack([network.latency for network in networks], axis=1)
    columns = np.concatenate([graph.resource[:, None], bandwidth, latency], axis=1)
    _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    return Networks(graph, of.ravel(), graph.resource[first], bandwidth[first], latency[first])
