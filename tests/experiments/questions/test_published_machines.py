"""Questions that experts of the field ask of machines, beside closed forms.

Published figures stand in ``benchmarks/published_figures.csv``, held by ``test_published``.
"""

from experiments.questions.collective import collective
from topologies import load_cluster

GIB = 2.0**30


def point(kind, cluster, size, ranks, nodes=None):
    return collective(kind, cluster, [size], ranks=ranks, nodes=nodes).points[0]


def test_a_torus_exchanges_at_the_closed_form_of_its_links():
    """64 TPU v4, a 4x4x4 torus: n L / 8 messages on a link each way (Dally and Towles 2004)."""
    cluster = load_cluster("tpu-v4")
    port = cluster.scale_up.bandwidth * cluster.scale_up.efficiency / 6
    ideal = GIB / 64 * (64 * 4 / 8) / port
    took = point("all_to_all", cluster, GIB, 64).time_s
    assert ideal <= took < 1.05 * ideal
