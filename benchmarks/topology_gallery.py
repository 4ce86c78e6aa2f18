"""The figure of ``topologies/README.md``: every family and some clusters.

``python -m benchmarks.topology_gallery`` draws it anew.
"""

from pathlib import Path

from matplotlib.figure import Figure

from topologies import FAMILIES, build, load_cluster, parse_topology
from topologies.drawing import draw_on

_CLUSTERS = (("dgx-a100", 16), ("perlmutter", 16), ("tpu-v5e", 16))


def gallery() -> Figure:
    """Draw one figure with every family and some clusters."""
    specs = [family.example for family in FAMILIES.values()]
    networks = [parse_topology(spec, bandwidth=50e9, latency=1e-6) for spec in specs]
    networks += [build(load_cluster(name), ranks) for name, ranks in _CLUSTERS]
    columns = 3
    rows = -(-len(networks) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows), layout="constrained")
    for number, network in enumerate(networks):
        draw_on(figure.add_subplot(rows, columns, number + 1), network)
    return figure


if __name__ == "__main__":
    gallery().savefig(Path(__file__).parents[1] / "topologies" / "gallery.png", dpi=66)
