"""Equivalent transfers: one is simulated for all, whichever calls meet.

Colour refinement: transfers are coloured by their bytes, ranks and links, ranks by their transfers,
links by their bandwidth and the transfers that use them, until no colour splits any more. In this
*equitable partition* transfers of one colour start and end together, whenever their calls begin,
because all that they wait for, and all that shares their links, has the same colours. This holds
for any subset of the calls, at any times: leaving calls out removes colours and splits none.

So a call keeps one transfer, rank and link of each colour, and the transfer puts on its link the
load of all transfers of its colour. A ring on one switch is then one transfer per step, and with
fewer transfers fewer steps need to be merged.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.support.arrays import Longs, by_appearance, offsets, row_of_entries
from simulator.support.hashes import Hashes, mixed, numbered, refined, rounded, summed
from simulator.transfers.crowd import Program
from simulator.transfers.program import strided


def quotient(programs: Sequence[Program], kinds: NDArray[np.integer]) -> list[Program]:
    """Keep one of each class of equivalent transfers, for calls that may meet.

    Parameters
    ----------
    programs
        Of the distinct calls, on the links of one network.
    kinds
        Class of each link; links of a class have equal bandwidth and latency
        (:attr:`simulator.costing.call_costs.Likeness.classes`), shape ``(links,)``.

    Returns
    -------
    list of Program
        In the same order. Any mixture of them takes exactly as long as the same mixture of
        ``programs``, on every network of the graph on which links of a class are equal. They must
        not be mixed with programs that were not compared with them.
    """
    everything = _AllPrograms.of(programs, kinds)
    flow, rank, link = everything.final_colours()
    # The first link of each colour represents it.
    _, first, number = np.unique(link, return_index=True, return_inverse=True)
    first_link = np.asarray(first[number.ravel()], dtype=np.int64)
    return [
        _one_of_each(program, flow[flows], rank[ranks], link, first_link)
        for program, flows, ranks in zip(
            programs, _slices(everything.flows), _slices(everything.ranks), strict=True
        )
    ]


class _AllPrograms(Struct, frozen=True, eq=False):
    """All programs concatenated, with ranks and flows numbered through.

    ``flows`` and ``ranks`` are the offsets of each program; the colours are the initial ones.
    """

    flows: Longs
    ranks: Longs
    source: Longs
    target: Longs
    use_flow: Longs
    use_link: Longs
    weight: Hashes
    flow_colour: Hashes
    rank_colour: Hashes
    link_colour: Hashes

    @staticmethod
    def of(programs: Sequence[Program], kinds: NDArray[np.integer]) -> "_AllPrograms":
        flows = offsets(len(program.source) for program in programs)
        ranks = offsets(program.ranks for program in programs)
        starts = list(zip(programs, flows.tolist(), ranks.tolist(), strict=False))
        return _AllPrograms(
            flows=flows,
            ranks=ranks,
            source=_joined([program.source + rank for program, _, rank in starts]),
            target=_joined([program.target + rank for program, _, rank in starts]),
            use_flow=_joined(
                [row_of_entries(program.offset) + flow for program, flow, _ in starts]
            ),
            use_link=_joined([program.link for program in programs]),
            weight=mixed(rounded(np.concatenate([program.weight for program in programs]))),
            flow_colour=np.concatenate(
                [
                    _initial_colours(program, kinds, number)
                    for number, program in enumerate(programs)
                ]
            ),
            rank_colour=mixed(row_of_entries(ranks)),
            link_colour=mixed(kinds.astype(np.int64)),
        )

    def final_colours(self) -> tuple[Longs, Longs, Longs]:
        """Refine to the fixed point; return the colours of all flows, ranks and links."""

        def split(flow: Hashes, rank: Hashes, link: Hashes) -> tuple[Hashes, ...]:
            passed = summed(mixed(link[self.use_link], self.weight), self.use_flow, len(flow))
            flow = mixed(flow, rank[self.source], rank[self.target], passed)
            ends = summed(mixed(flow), self.source, len(rank))
            ends += summed(mixed(flow, flow), self.target, len(rank))
            rank = mixed(rank, ends)
            passing = summed(mixed(flow[self.use_flow], self.weight), self.use_link, len(link))
            return flow, rank, mixed(link, passing)

        flow, rank, link = refined((self.flow_colour, self.rank_colour, self.link_colour), split)
        return numbered(flow), numbered(rank), numbered(link)


def _initial_colours(program: Program, kinds: NDArray[np.integer], number: int) -> Hashes:
    """Return the initial colours of flows: run, bytes, and the parts of the latency."""
    run, ways = program.run, program.ways
    own = np.full_like(run, number)
    start = mixed(own, run, program.amount, program.latency, *program.latency_of.T)
    if ways is None:
        return start
    passed = mixed(kinds[ways.routes.link], rounded(ways.routes.share))
    return mixed(start, summed(passed, ways.routes.message, len(run)))


def _joined(parts: list[Longs]) -> Longs:
    return np.concatenate(parts).astype(np.int64)


def _slices(begin: Longs) -> list[slice]:
    return [slice(first, last) for first, last in pairwise(begin.tolist())]


def _one_of_each(
    program: Program, flow: Longs, rank: Longs, link: Longs, first_link: Longs
) -> Program:
    """Return a program with one flow and rank of each colour; ``link`` has the links' colours."""
    # Classes are numbered by first appearance, so that the result does not depend on the colours.
    flow_class, flows = by_appearance(flow)
    rank_class, ranks = by_appearance(rank)
    ways = program.ways
    if len(flows) == len(flow) or ways is None:
        return program
    on_first = first_link[program.link] == program.link
    of, on = flow_class[row_of_entries(program.offset)[on_first]], program.link[on_first]
    pair, pair_of_use = np.unique(of * (len(link) + 1) + on, return_inverse=True)
    hops = np.bincount(pair // (len(link) + 1), minlength=len(flows))
    weight, share = (
        np.bincount(pair_of_use.ravel(), each[on_first], len(pair)).astype(np.float64)
        for each in (program.weight, ways.share)
    )
    # In each run, the flow classes of each rank class.
    row = (np.arange(len(program.row))[:, None] * program.ranks + ranks).ravel()
    ends = zip(program.row_offset[row].tolist(), program.row_offset[row + 1].tolist(), strict=True)
    entries = [np.unique(flow_class[program.row_flow[first:last]]) for first, last in ends]
    kept = Program(
        ranks=len(ranks),
        source=rank_class[program.source[flows]],
        target=rank_class[program.target[flows]],
        latency=program.latency[flows],
        amount=program.amount[flows],
        latency_of=program.latency_of[flows],
        offset=offsets(hops),
        link=pair % (len(link) + 1),
        weight=weight,
        row=np.arange(len(program.row), dtype=np.int64) * len(ranks),
        repeats=program.repeats,
        stride=program.stride,
        row_offset=offsets(map(len, entries)),
        row_flow=np.concatenate([np.empty(0, dtype=np.int64), *entries]),
        transfers=0,
        ways=ways.of(flows, share, compared=True),
    )
    return strided(kept)
