"""Rings inside wired nodes: that they are rings, which links they take, and their busbw."""

from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from collectives.algorithms import ring
from collectives.algorithms.ring import local_rings
from collectives.libraries.planners import plan
from collectives.proof import check
from experiments.scenario.scenario import Site
from helpers.node_drawings import BOXES
from helpers.places import SHARED
from simulator.calls import Call, Group
from simulator.costing.link_load import cost, plan_loads
from simulator.topology import Link, topology
from topologies import build, load_cluster
from topologies.readers.from_nccl import from_nccl

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


SITES = {}
"""What is known of a cluster's ranks, and the cluster, by its identity and their number."""


@pytest.fixture(scope="module", autouse=True)
def no_sites_are_left():
    yield
    SITES.clear()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Clusters of node drawings by name, each read once."""

    @cache
    def read(name):
        path = tmp_path_factory.mktemp("drawn") / f"{name}.xml"
        path.write_text(BOXES[name]())
        return from_nccl(path)

    return read


def mi250x():
    path = SHARED / "traces" / "other" / "topo_8p1h.xml"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return from_nccl(path)


def planned(cluster, kind, size, ranks):
    site, _ = SITES.setdefault((id(cluster), ranks), (Site(cluster, ranks, None, ()), cluster))
    call = Call(kind, Group(tuple(range(ranks))), size)
    return plan(call, site.topology, site.machine), site


def seconds(cluster, kind, size, ranks):
    found, site = planned(cluster, kind, size, ranks)
    return cost(plan_loads(found, np.arange(ranks, dtype=np.int32), size, site.topology))


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_does_what_it_claims(drawn, name, kind):
    cluster = drawn(name)
    for ranks in {3, cluster.ranks_per_node, 2 * cluster.ranks_per_node}:
        if ranks <= cluster.capacity:
            found, _ = planned(cluster, kind, 2.0**26, ranks)
            if kind in ("all_reduce", "broadcast", "reduce"):  # owners of blocks do not move
                check(found.schedule)


def test_rings_take_no_link_more_often_than_it_is_wide():
    network = build(mi250x(), 8)
    rings = local_rings(np.arange(8, dtype=np.int32), network)
    assert len(rings) == 4
    assert all(sorted(one) == list(range(8)) for one in rings.tolist())
    taken = Counter(pair for one in rings.tolist() for pair in pairwise([*one, one[0]]))
    width = {
        (link.source, link.target): link.bandwidth
        for link in map(network.link, range(len(network)))
        if isinstance(link.source, int) and isinstance(link.target, int)
    }
    share = min(width.values())
    assert all(taken[pair] * share <= width[pair] * (1 + 1e-9) for pair in taken)


def test_a_link_twice_as_wide_carries_two_rings():
    sides = {(0, 1): 2e9, (1, 2): 2e9, (2, 3): 2e9, (0, 3): 2e9, (0, 2): 1e9}
    links = [
        Link(*ends, bandwidth, 0.0)
        for (a, b), bandwidth in sides.items()
        for ends in ((a, b), (b, a))
    ]
    rings = local_rings(np.arange(4, dtype=np.int32), topology("square", 4, links))
    assert sorted(rings.tolist()) == [[0, 1, 2, 3]] * 2 + [[3, 2, 1, 0]] * 2


def test_the_bandwidth_of_an_all_reduce_is_that_of_its_rings():
    cluster, size = mi250x(), 2.0**32
    busbw = size / seconds(cluster, "all_reduce", size, 8) * 2 * 7 / 8
    assert busbw == pytest.approx(4 * 50e9 * cluster.scale_up.efficiency, rel=0.01)


def test_across_nodes_the_narrowest_part_of_the_tree_is_full():
    """Both NICs of a socket hang on one Gen4 x16 switch: 31.5 GB/s a socket."""
    cluster, size = mi250x(), 2.0**32
    busbw = size / seconds(cluster, "all_gather", size, 16) * 15 / 16
    assert busbw == pytest.approx(2 * 31.5e9, rel=0.02)
    # By a tree of two nodes the whole array crosses once each way, by rings nearly twice.
    through = size / seconds(cluster, "all_reduce", size, 16)
    assert 0.7 * 2 * 31.5e9 < through < 2 * 31.5e9


def test_bridged_pairs_are_neighbours(drawn):
    network = build(drawn("bridged"), 4)
    order, back = local_rings(np.array([0, 2, 1, 3], dtype=np.int32), network).tolist()
    assert order == [0, 2, 1, 3]  # positions 0, 1, 2, 3: pairs beside each other
    assert back == order[::-1]


def test_a_tree_is_gone_through_branch_by_branch(drawn):
    network = build(drawn("l40s"), 8)
    mixed = np.array([0, 4, 1, 5, 2, 6, 3, 7], dtype=np.int32)
    (order,) = local_rings(mixed, network).tolist()
    assert mixed[order].tolist() == list(range(8))


@pytest.mark.parametrize(("box", "entry"), [("dgx_a100", "dgx-a100"), ("mi300x", "mi300x-8")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_box_of_the_catalogue_drawn_is_as_fast(drawn, box, entry, kind):
    """Where PCIe limits nothing the graph and the star must agree."""
    star, graph = load_cluster(entry), drawn(box)
    for size in (2.0**16, 2.0**28):
        there, here = (seconds(one, kind, size, 8) for one in (star, graph))
        assert here == pytest.approx(there, rel=1e-9)


def test_two_nodes_drawn_are_as_fast_as_in_the_catalogue(drawn):
    star, graph = load_cluster("dgx-a100"), drawn("dgx_a100")
    there, here = (seconds(one, "all_reduce", 2.0**28, 16) for one in (star, graph))
    assert here == pytest.approx(there, rel=0.01)


def test_pcie_between_sockets_limits_a_ring(drawn):
    """Each way between the sockets one hop of the ring: 22 GB/s of Sapphire Rapids (NCCL).

    Of that a ring moves the part through host memory: GPUs so far apart have no peer access.
    """
    cluster, size = drawn("l40s"), 2.0**32
    busbw = size / seconds(cluster, "all_reduce", size, 8) * 2 * 7 / 8
    between = 22e9 / 0.75 * cluster.pcie.paths.shared_memory
    assert busbw == pytest.approx(between, rel=0.02)


def test_rings_share_cycles_and_end_in_different_places():
    up = np.arange(8, dtype=np.int32)
    cycles = np.stack([up, up[::-1]])
    grid = np.arange(16, dtype=np.int32).reshape(2, 8).T
    rings = ring.rings_across_domains(grid, ring.paths_along(cycles))
    assert sorted(rings[:, 0].tolist()) == list(range(8))
    assert sorted(rings[:, 7].tolist()) == list(range(8))
    assert all(sorted(one) == list(range(16)) for one in rings.tolist())
    steps = np.diff(rings[:, :8], axis=1) % 8
    assert sorted(steps[:, 0].tolist()) == [1] * 4 + [7] * 4
    check(ring.all_reduce_over_rings(rings))


def test_one_cycle_is_the_way_up():
    grid = np.arange(12, dtype=np.int32).reshape(3, 4).T
    rings = ring.rings_across_domains(grid)
    assert rings[1].tolist() == [1, 2, 3, 0, 4, 7, 6, 5, 9, 10, 11, 8]
