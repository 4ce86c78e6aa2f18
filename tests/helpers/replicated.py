"""Jobs whose ranks do the same in the same places, on networks of like nodes."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from helpers.strategies import BANDWIDTHS, LATENCIES, SIZES, TIMES, both_ways, chances
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.topology import SCALE_OUT, Link, topology
from simulator.workload import What


def like_nodes(nodes, per_node, *, bandwidth=3e9, latency=1e-6, slow=()):
    """Nodes on one fabric: ranks on a switch of their own, a NIC each; some nodes' NICs slower."""
    links = both_ways(
        [(rank, f"switch {rank // per_node}") for rank in range(nodes * per_node)],
        bandwidth=bandwidth,
        latency=latency,
    )
    for rank in range(nodes * per_node):
        speed = bandwidth / (16 if rank // per_node in slow else 8)
        links += [
            Link(rank, f"out {rank}", bandwidth, 0.0, SCALE_OUT),
            Link(f"out {rank}", "fabric", speed, 5 * latency, SCALE_OUT),
            Link("fabric", f"in {rank}", speed, 5 * latency, SCALE_OUT),
            Link(f"in {rank}", rank, bandwidth, 0.0, SCALE_OUT),
        ]
    return topology("like nodes", nodes * per_node, links)


@st.composite
def replicated(draw, stages=2, per_node=2):
    """A workload of a node per stage, some times over, and the network of its nodes."""
    chance = draw(chances())
    copies = chance.randint(2, 4)
    nodes = copies * stages
    builder = WorkloadBuilder(job_ranks=nodes * per_node)
    made = {rank: [] for rank in range(nodes * per_node)}
    for number in range(chance.randint(1, 8)):
        item = chance.choice(sorted(ITEMS))
        back = chance.sample((1, 2, 3), chance.randint(0, 2))
        lag, size, length = chance.choice(TIMES), chance.choice(SIZES), chance.choice(TIMES)
        for members, stage in ITEMS[item](copies, stages, per_node):
            call = -1
            if item != "compute":
                kind = KIND.get(item, "all_reduce")
                group = builder.group(members, item)
                call = builder.call(CallRow(kind, group, number, size * (1 + stage)))
            for rank in members:
                op = builder.op(
                    What.COMPUTE if call < 0 else What.COLLECTIVE,
                    rank=rank,
                    lane="lane",
                    name=item,
                    duration=length * (1 + stage) if call < 0 else 0.0,
                    call=call,
                )
                for before in back:
                    if before <= len(made[rank]):
                        builder.edge(made[rank][-before], op, lag=lag)
                made[rank].append(op)
    network = like_nodes(
        nodes, per_node, bandwidth=chance.choice(BANDWIDTHS), latency=chance.choice(LATENCIES)
    )
    return builder.build(), network


def _rank(copy, stage, place, copies, per_node):
    return (stage * copies + copy) * per_node + place


def _compute(copies, stages, per_node):
    del stages
    for rank in range(copies * 2 * per_node):
        yield (rank,), rank // (copies * per_node)


def _tensor(copies, stages, per_node):
    for stage in range(stages):
        for copy in range(copies):
            yield tuple(_rank(copy, stage, i, copies, per_node) for i in range(per_node)), stage


def _data(copies, stages, per_node):
    for stage in range(stages):
        for place in range(per_node):
            yield tuple(_rank(c, stage, place, copies, per_node) for c in range(copies)), stage


def _pipeline(copies, stages, per_node):
    del stages
    for copy in range(copies):
        for place in range(per_node):
            yield tuple(_rank(copy, s, place, copies, per_node) for s in range(2)), 0


def _everyone(copies, stages, per_node):
    yield tuple(range(copies * stages * per_node)), 0


ITEMS = {
    "compute": _compute,
    "tensor": _tensor,
    "data": _data,
    "shuffle": _data,
    "pipeline": _pipeline,
    "everyone": _everyone,
}
KIND = {"shuffle": "all_to_all", "pipeline": "send_receive"}


def with_straggler(workload, op, extra):
    """The workload with one op longer."""
    duration = workload.duration.copy()
    duration[op] += extra
    return replace(workload, duration=duration)


def ranks_of(workload):
    return set(np.unique(workload.rank).tolist())
