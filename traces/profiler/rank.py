"""One rank's trace to its part of the graph."""

from traces.core.comm_kernels import KERNELS, KernelRules
from traces.core.events import RankTrace
from traces.core.files import uncollected
from traces.core.rank_graph import RankGraph
from traces.profiler.comms import Enclosing
from traces.profiler.device import add_device_ops, split_messages
from traces.profiler.host import (
    add_host_ops,
    every_thread,
    handover_cuts,
    launch_cuts,
    main_thread,
    queue_cuts,
    wait_cuts,
)
from traces.profiler.host_collectives import add_host_collectives, add_queue_edges, collective_waits
from traces.profiler.host_waits import device_waits, handovers, polling_waits
from traces.profiler.launches import pair, typical_latency
from traces.profiler.stream_waits import graph_waits, waits_between_streams
from traces.profiler.streams import add_stream_edges
from traces.profiler.window import Window


@uncollected()
def rank_graph(trace: RankTrace, window: Window, kernels: KernelRules = KERNELS) -> RankGraph:
    """Build the ops of a rank's step and all edges between them; ``kernels`` tells which call."""
    graph = RankGraph(rank=trace.rank, start=window.start)
    launches = pair(trace, window)
    enclosing = Enclosing.of(trace, window)
    ops = add_device_ops(trace, window, launches, enclosing, graph, kernels)
    cuts = every_thread(trace, window)
    main = main_thread(trace, window, cuts)
    launch_cuts(trace, launches, cuts)
    wait_cuts(trace, device_waits(trace, window, launches, ops), cuts)
    wait_cuts(trace, polling_waits(trace, window, ops), cuts)
    handover_cuts(handovers(trace, window, main), cuts)
    works = add_host_collectives(trace, window, graph)
    queue_cuts(trace, works, cuts)
    wait_cuts(trace, collective_waits(trace, window, graph, works), cuts)
    lanes = add_host_ops(trace, window, graph, enclosing, cuts, main)
    waits = waits_between_streams(trace, window, launches, enclosing, ops)
    for op, sources in graph_waits(launches, ops).items():
        waits.setdefault(op, set()).update(sources)
    lane_op = {
        ops.op_of[device]: lanes.launch_op[launch]
        for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True)
    }
    add_queue_edges(trace, graph, works, lanes.launch_op)
    add_stream_edges(ops, waits, typical_latency(trace, launches), lane_op)
    split_messages(graph)
    return graph
