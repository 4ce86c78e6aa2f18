"""What handing points to the workers of a Dask cluster costs: ``python -m benchmarks.clusters``.

Two workers answer points of about 50 ms. The efficiency is the share of their time in which they
compute, by Dask's own record of tasks: where other work takes the processors, points take longer,
and the share stays. Without what begins only once (starting workers, compiling, shipping what they
need). The same points in one process are beside it.
"""

import time
from collections.abc import Iterator

import distributed

from benchmarks.measure import Figure
from experiments.scenario.change import Scaled
from experiments.studies.dask_cluster import dask_cluster
from experiments.studies.declaration import declare
from experiments.studies.placed import Chunk, Run
from experiments.studies.sites import Sites
from experiments.studies.study import here, read_workloads
from simulator.workload import What

_POINTS = 100
_WORKERS = 2
_STUDY = {
    "name": "points",
    "workloads": [{"trace": "traces/samples/gpu-dp2-tp4"}],
    "cluster": "dgx-a100",
    "space": {"compute": [1]},
    "settings": {"engine": "flow"},
}
_AS_LONG = 0.05
"""Seconds of a chunk: as many flow points as take so long stand for one point."""


def dask_points() -> Iterator[Figure]:
    """Measure it."""
    declared = declare(_STUDY)
    bases, _ = read_workloads(declared)
    site = Sites(declared, bases).placed(0, {"compute": 1.0}).site

    def chunks(count: int, each: int, begin: int = 0) -> list[Chunk]:
        """Make chunks of so many points; no two are alike."""
        points = [(Scaled(What.COMPUTE, over=1 + number / 1e4),) for number in range(count * each)]
        return [
            Chunk(begin + number, site, tuple(points[number * each : (number + 1) * each]), "flow")
            for number in range(count)
        ]

    with here(bases) as run:
        _seconds(run, chunks(2, 1))
        each = max(1, round(_AS_LONG / (_seconds(run, chunks(20, 1)) / 20)))
        alone = _seconds(run, chunks(_POINTS, each))
    with (
        distributed.LocalCluster(
            n_workers=_WORKERS,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster.scheduler_address, set_as_default=False) as watching,
        dask_cluster(bases, cluster.scheduler_address, lambda _: None) as run,
    ):
        _seconds(run, chunks(4 * _WORKERS, each))
        with distributed.get_task_stream(client=watching) as tasks:
            together = _seconds(run, chunks(_POINTS, each))
        busy = sum(
            part["stop"] - part["start"]
            for task in tasks.data
            for part in task["startstops"]
            if part["action"] == "compute"
        )
    what = (
        f"points of {1e3 * busy / _POINTS:.0f} ms on {_WORKERS} workers: {together:.1f} s; "
        f"in one process {alone:.1f} s"
    )
    share = 100 * busy / (_WORKERS * together)
    yield Figure("Dask, efficiency", share, "%", 80, most=False, remark=what)


def _seconds(run: Run, chunks: list[Chunk]) -> float:
    begun = time.perf_counter()
    done = sum(1 for _ in run(chunks))
    if done != len(chunks):
        raise RuntimeError(f"{done} of {len(chunks)} chunks were answered")
    return time.perf_counter() - begun


if __name__ == "__main__":
    for figure in dask_points():
        print(f"{figure.what}: {figure.value:.3g} {figure.unit} ({figure.remark})")  # noqa: T201
