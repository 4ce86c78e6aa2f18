"""What tests of algorithms ask of a schedule."""

import numpy as np

from collectives import ALGORITHMS

SIZE = 720720.0
"""Bytes that every group size up to 16 divides."""


def build(kind, name, n):
    return ALGORITHMS[kind][name](n)


def number_of_steps(schedule):
    return sum(step.repeats for step in schedule.steps)


def across(schedule, domain):
    """Bytes each rank sends to another domain."""
    sent = np.zeros(schedule.ranks)
    for step in schedule.steps:
        leaves = domain[step.source] != domain[step.target]
        np.add.at(sent, step.source[leaves], step.count[leaves] * float(step.repeats))
    return sent * SIZE / schedule.parts
