"""A cluster's accelerator as the roofline that times generated kernels."""

from simulator.errors import ClusterError
from topologies import Cluster
from traces.roofline import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, Accelerator


def roofline(
    cluster: Cluster,
    precision: str,
    *,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> Accelerator:
    """Return the peak of a precision and the memory bandwidth that the cluster file gives.

    Raises
    ------
    ClusterError
        If the file does not give them: there is no default.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> roofline(load_cluster("hgx-h100"), "bf16").peak
    989000000000000.0
    """
    chip = cluster.accelerator
    if precision not in chip.peak:
        known = ", ".join(chip.peak) or "none"
        raise ClusterError(
            f"{cluster.name}: accelerator.peak.{precision} is missing, and a generated workload"
            f" needs it (given: {known})"
        )
    if chip.memory_bandwidth is None:
        raise ClusterError(
            f"{cluster.name}: accelerator.memory_bandwidth is missing, and a generated workload"
            " needs it"
        )
    return Accelerator(
        peak=chip.peak[precision],
        memory_bandwidth=chip.memory_bandwidth,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
    )
