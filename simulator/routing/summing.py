"""Adding up messages block by block: what :mod:`simulator.routing.least_paths` has to be given."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.routing.choice import HASH, Rule
from simulator.routing.graph import UNKNOWN
from simulator.routing.least_paths import (
    Block,
    Field,
    HubPairs,
    Sums,
    add_by_hubs,
    add_direct,
    add_walked,
    edge,
    same_everywhere,
    tree,
)
from simulator.routing.messages import choose_hubs, inside, messages, no_links
from simulator.routing.survey import Survey

Floats = NDArray[np.float64]
Add = Callable[[Block], bool]
"""Adds up a block of messages; False where it cannot."""


def through(survey: Survey, found: Sums, choice: int, took: Floats) -> Add:
    """Return what adds up messages from hub to hub, or between any nodes where there are no hubs.

    Parameters
    ----------
    survey
        Of the network.
    found
        Sums that are added to.
    choice
        How a next hop is chosen.
    took
        Set to the latency of each message (s), by its number, unless it is empty.
    """
    inner = survey.hubs.inner if survey.hub.any() else survey.cells.outside
    rule = survey.rule._replace(choice=choice)
    if survey.network.routing.resource and not survey.hub.any():
        rule = rule._replace(choice=HASH)
    field = _field(survey, inner, rule, found)
    return lambda block: add_direct(block, took, field) == 0


def by_hubs(survey: Survey, found: Sums, choice: int, pairs: HubPairs) -> Add:
    """Return what adds up messages where there are hubs.

    Arguments are those of :func:`through`; what goes from hub to hub is gathered in ``pairs``,
    unless they are empty.
    """
    network, graph = survey.network, survey.graph
    rule = survey.rule._replace(choice=choice)
    inside_rule = rule._replace(choice=HASH) if network.routing.resource else rule
    field = _field(survey, survey.hubs.inner, rule, found)
    ways = edge(len(network.nodes))

    def add(block: Block) -> bool:
        sent = messages(block.source, np.repeat(block.goal, np.diff(block.offset)), len(survey.hub))
        links = inside(sent, graph, survey.cells, inside_rule, no_links(sent, graph))
        if (sent.metric >= survey.least_by_hub).any():
            choose_hubs(sent, graph, survey.hubs, rule.seed)
        if (sent.metric == UNKNOWN).any():
            return False
        add_walked(block, sent, links, field)
        return add_by_hubs(block, sent, pairs, survey.hubs, ways, field) == 0

    return add


def _field(survey: Survey, inner: NDArray[np.bool_], rule: Rule, found: Sums) -> Field:
    return Field(
        graph=survey.graph,
        rule=rule,
        latency=survey.network.latency,
        inner=inner,
        even=same_everywhere(survey.graph, inner),
        tree=tree(survey.graph),
        sums=found,
    )
