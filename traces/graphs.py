"""Graphs of kernels that one host call launches (CUDA and HIP graphs): what their replay waits for.

All nodes of a graph follow what was launched to its stream before, and are done before what is
launched to it afterwards. The profiler writes the nodes on the streams they ran on, and not the
stream that the graph was launched to: it is taken to be the one on which most of them ran. Inside
the graph the order on a stream and the measured times tell the rest, as for other kernels.
"""

from collections import Counter
from itertools import groupby

from traces.coverage import CONTRADICTED
from traces.device import DeviceOps
from traces.launches import Launches
from traces.waits import Waits


def graph_waits(launches: Launches, ops: DeviceOps) -> Waits:
    """Collect what the nodes on other streams wait for, and what waits for them.

    Nothing that the measured times contradict.
    """
    waits: Waits = {}
    pairs = zip(launches.host.tolist(), launches.device.tolist(), strict=True)
    for _, rows in groupby(pairs, key=lambda pair: pair[0]):
        nodes = sorted(ops.op_of[device] for _, device in rows)
        if len({ops.stream[node] for node in nodes}) > 1:
            _join(ops, nodes, waits)
    return waits


def _join(ops: DeviceOps, nodes: list[int], waits: Waits) -> None:
    """Tie the nodes on side streams to what runs before and after the graph on its own."""
    ((main, _),) = Counter(ops.stream[node] for node in nodes).most_common(1)
    home = [node for node in nodes if ops.stream[node] == main]
    before, after = ops.previous(home[0]), ops.next(home[-1])
    for side in {ops.stream[node] for node in nodes} - {main}:
        branch = [node for node in nodes if ops.stream[node] == side]
        for source, op in ((before, branch[0]), (branch[-1], after)):
            if source is None or op is None:
                continue
            if ops.ends[source] <= ops.starts[op] + CONTRADICTED and ops.launched_before(
                source, op
            ):
                waits.setdefault(op, set()).add(source)
