"""Messages spread over all shortest paths, and Valiant's detours, node by node in plain Python.

At each node every next hop takes an equal part; a detour is a mean over what is in between.
"""

from collections import defaultdict

import numpy as np
import pytest
from msgspec import structs

from simulator.routing.paths import graph_of, survey_of
from simulator.routing.routes import routes
from topologies import parse_topology

CABLE = {"bandwidth": 50e9, "latency": 1e-6}
SPECS = (
    "torus:3x4",
    "torus:5",
    "mesh:2x3",
    "hypercube:3",
    "hyperx:3x2x1",
    "dragonfly:3x2x1",
    "dragonfly:5x4x1",
    "dragonfly:3x4x2x2",
)


class Nodes:
    """The nodes of a network or its routers alone, and what each link between them counts."""

    def __init__(self, network, group):
        self.group = group.tolist()
        self.all = [node for node, group in enumerate(self.group) if group >= 0]
        metric = graph_of(network).metric.tolist()
        ends = zip(network.source.tolist(), network.target.tolist(), metric, strict=True)
        inside = set(self.all)
        self.links = [
            (link, source, target, far)
            for link, (source, target, far) in enumerate(ends)
            if source in inside and target in inside
        ]

    def far(self, goals):
        """From every router to the nearest goal, by going over all links again and again."""
        found = dict.fromkeys(self.all, np.inf) | dict.fromkeys(goals, 0)
        for _ in self.all:
            for _, source, target, far in self.links:
                found[source] = min(found[source], found[target] + far)
        return found

    def spread(self, source, goals):
        """Return the part on each link and at each goal if every next hop takes an equal part."""
        far, at = self.far(goals), defaultdict(float, {source: 1.0})
        on_link, ended = defaultdict(float), defaultdict(float)
        for node in sorted(self.all, key=lambda node: -far[node]):
            if node in goals:
                ended[node] += at[node]
                continue
            hops = [
                (link, to)
                for link, of, to, w in self.links
                if of == node and far[to] + w == far[node]
            ]
            for link, to in hops:
                on_link[link] += at[node] / len(hops)
                at[to] += at[node] / len(hops)
        return on_link, ended

    def detour(self, first, last):
        """Return the part of a message on each link."""
        groups = sorted({self.group[node] for node in self.all})
        same = self.group[first] == self.group[last]
        members = [{one for one in self.all if self.group[one] == group} for group in groups]
        between = [{one} for one in self.all if self.group[one] == self.group[first]]
        total = defaultdict(float)
        for goals in between if same else members:
            on_link, ended = self.spread(first, goals)
            parts = [(on_link, 1.0)]
            parts += [(self.spread(one, {last})[0], part) for one, part in ended.items()]
            for links, part in parts:
                for link, share in links.items():
                    total[link] += part * share / len(between if same else members)
        return total


@pytest.mark.parametrize("spec", SPECS)
def test_a_detour_is_the_mean_over_what_is_in_between(spec):
    network = parse_topology(f"{spec}@valiant", **CABLE)
    plainly, detours = Nodes(network, network.routing.group), survey_of(network).detours
    chance = np.random.default_rng(7)
    pairs = [(a, b) for a in plainly.all for b in plainly.all if a != b]
    pairs = [pairs[at] for at in chance.permutation(len(pairs))[:6]]
    first, last = (np.array(ends, dtype=np.int64) for ends in zip(*pairs, strict=True))
    offset, link, share = detours.between(first, last)
    latency, amount = chance.random(len(network)), chance.random(len(pairs))
    load, means = np.zeros(len(network)), []
    for row, pair in enumerate(pairs):
        wanted = plainly.detour(*pair)
        found = np.zeros(len(network))
        np.add.at(found, link[offset[row] : offset[row + 1]], share[offset[row] : offset[row + 1]])
        whole = np.array([wanted[each] for each in range(len(network))])
        assert found == pytest.approx(whole, abs=1e-12)
        load += amount[row] * whole
        means.append(latency @ whole)
    assert detours.loads(first, last, amount) == pytest.approx(load, abs=1e-12)
    assert structs.replace(detours, latency=latency).latencies(first, last) == pytest.approx(means)


@pytest.mark.parametrize(
    "spec",
    ["torus:3x4x2", "mesh:3x3", "hypercube:3", "twisted_torus:2x4", "leaf_spine:3x2x3",
     "fat_tree:4", "dragonfly:5x4x2", "hyperx:3x2x2", "fully_connected:4", "ring:6"],
)  # fmt: skip
def test_where_messages_are_spread_every_next_hop_takes_an_equal_part(spec):
    network = parse_topology(f"{spec}@spray", **CABLE)
    plainly = Nodes(network, np.zeros(len(network.nodes), np.int32))
    chance = np.random.default_rng(3)
    source = chance.integers(0, network.ranks, 12).astype(np.int32)
    target = ((source + chance.integers(1, network.ranks, 12)) % network.ranks).astype(np.int32)
    ways = routes(network, source, target)
    for row, ends in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        wanted, _ = plainly.spread(ends[0], {ends[1]})
        part = slice(ways.offset[row], ways.offset[row + 1])
        found = dict(zip(ways.link[part].tolist(), ways.share[part].tolist(), strict=True))
        assert found == pytest.approx({link: part for link, part in wanted.items() if part})
