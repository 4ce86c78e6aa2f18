"""What a library's model knows of a machine, and of one whose nodes differ."""

from dataclasses import fields, replace
from itertools import permutations

import numpy as np

from collectives.machine import Machine, NodeFigures, slowest

FAST = NodeFigures("hopper", cpu="amd", in_network=True, net_message=None, nics=8, link="nvlink4")


def test_of_a_machine_nothing_is_supposed_that_nobody_said():
    """What is known by default is what libraries count on: order, PXN, a process for each GPU."""
    machine = Machine(np.zeros(2, dtype=np.int32))
    supposed = {part.name for part in fields(machine)[1:] if getattr(machine, part.name)}
    assert supposed == {"library", "in_order", "pxn", "ranks_per_process"}
    assert (machine.library, machine.ranks_per_process) == ("none", 1)


def test_nodes_that_differ_are_as_the_slowest_of_them_in_every_respect():
    """One node that is worse in one respect makes all of them so, wherever it stands."""
    assert slowest([FAST, FAST]) == FAST
    worse = [
        {"generation": "ampere"},
        {"in_network": False},
        {"net_message": 2e-6},
        {"nics": 2},
        {"link": "pcie5"},
        {"in_order": False},
    ]
    for change in worse:
        for nodes in permutations([FAST, FAST, replace(FAST, **change)]):
            assert slowest(nodes) == replace(FAST, **change)


def test_the_slowest_of_several_is_found_among_all():
    nodes = [
        FAST,
        replace(FAST, cpu="intel", net_message=1e-6, nics=0, link="nvlink5"),
        replace(FAST, generation="blackwell", net_message=3e-6, nics=4),
    ]
    for order in permutations(nodes):
        whole = slowest(order)
        assert (whole.generation, whole.cpu, whole.net_message) == ("hopper", "amd", 3e-6)
        assert (whole.nics, whole.link) == (4, "nvlink4"), "nodes without NICs are not counted"
