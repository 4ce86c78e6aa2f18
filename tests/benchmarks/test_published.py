"""What others published of collectives, logs and single figures, is met as far as is stated."""

import pytest

from benchmarks import published
from topologies import load_cluster

KNOWN = {
    ("mi300x-8", "broadcast", ""): "the least of an acceptance; a sound machine reaches more",
    ("mi300x-8", "reduce", ""): "the least of an acceptance; a sound machine reaches more",
    ("mi355x-8", "all_to_all", ""): "the least of an acceptance: 12.02 %",
    ("h100-pcie-8", "all_reduce", ""): "eight RTX 5090, whose host is not known",
    ("dgx-a100", "all_reduce", "ring"): "8 B by rings that NCCL would not choose",
    ("hgx-h20", "all_reduce", "nvls_tree"): "4 B by an algorithm that NCCL would not choose",
}
"""Figures beyond ``published.CLOSE``, and why."""


@pytest.fixture(scope="module")
def figures():
    return published.figures()


def test_published_logs_are_met_within_their_limits():
    assert published.main()


@pytest.mark.parametrize("read", [published.load, published.figures])
def test_every_published_row_has_a_source_and_a_cluster(read):
    rows = read()
    assert all(len(source) > 10 for source in rows.source)
    for cluster in set(rows.cluster):
        assert load_cluster(cluster).name == cluster


def test_published_figures_are_met_but_for_those_that_are_known_not_to_be(figures):
    """12 %, as experts ask; what a machine is accepted from, too."""
    off = figures[figures.error.abs() > published.CLOSE]
    missed = set(zip(off.cluster, off.kind, off.algorithm, strict=True))
    assert missed == set(KNOWN)
    assert len(off) == len(KNOWN)


def test_only_forced_algorithms_at_a_few_bytes_are_far_off(figures):
    far = figures[figures.error.abs() > published.FAR]
    assert set(far.algorithm) == {"ring", "nvls_tree"}
    assert far.size_bytes.max() <= 8
