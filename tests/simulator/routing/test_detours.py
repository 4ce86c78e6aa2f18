"""Valiant's detours, router by router: a mean over what is in between, each half spread evenly."""

from collections import defaultdict

import numpy as np
import pytest

from simulator.routing.paths import graph_of, survey_of
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


class Routers:
    """The routers of a network, and the links between them with what each counts."""

    def __init__(self, network):
        self.group = network.routing.group.tolist()
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
    plainly, detours = Routers(network), survey_of(network).detours
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
    assert detours.latencies(first, last, latency) == pytest.approx(means)
