"""Tables of NDTimeline of a small pipeline whose step is known by hand."""

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = [
    *("dp_rank", "stage", "rank", "step", "optype", "start_ts"),
    *("duration", "seq_id", "mc", "mb_id", "gmc"),
]


def rows(replicas=2, step=3):
    """Two stages, one micro-batch: a forward, a message, a forward, two backwards, the rest.

    The first stage computes from 0 to 2, its message takes till 2.5, the second stage computes
    till 8.5, its message takes till 9, the first stage computes till 13; then all replicas reduce
    till 15, the norm of the gradients takes till 16, the optimiser till 17.
    """
    table = []

    def add(replica, stage, kind, start, end):
        rank = 2 * replica + stage
        chunk = 0 if kind.endswith("compute") else -1
        table.append((replica, stage, rank, step, kind, start, end - start, 0, chunk, 0, 0))

    for replica in range(replicas):
        add(replica, 0, "forward-compute", 0.0, 2.0)
        add(replica, 0, "forward-send", 2.0, 2.5)
        add(replica, 0, "backward-recv", 2.0, 9.0)
        add(replica, 0, "backward-compute", 9.0, 13.0)
        add(replica, 0, "grads-reduce-scatter", 13.0, 15.0)
        add(replica, 1, "forward-recv", 0.0, 2.5)
        add(replica, 1, "forward-compute", 2.5, 4.5)
        add(replica, 1, "backward-compute", 4.5, 8.5)
        add(replica, 1, "backward-send", 8.5, 9.0)
        add(replica, 1, "grads-reduce-scatter", 8.5, 10.5)
        for stage, begin in ((0, 15.0), (1, 10.5)):
            add(replica, stage, "optimizer-clip-main-grad", begin, 16.0)
            add(replica, stage, "optimizer", 16.0, 17.0)
    return table


def write(path, table, columns=COLUMNS):
    """Write rows as Parquet, with the types of ByteDance's."""
    data = {name: [row[at] for row in table] for at, name in enumerate(COLUMNS) if name in columns}
    pq.write_table(pa.table(data), path)
    return path
