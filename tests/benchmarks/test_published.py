"""What others published of collectives, logs and single figures, is met as far as is stated."""

import pytest

from benchmarks import published
from experiments.priors.network import FAR_SITES, SITES
from topologies import load_cluster


@pytest.fixture(scope="module")
def figures():
    return published.figures()


def test_published_logs_are_met_within_their_limits(figures, monkeypatch):
    monkeypatch.setattr(published, "figures", lambda: figures)  # modelled once, in seconds
    assert published.main()


def test_every_published_row_has_a_source_and_a_cluster(figures):
    for rows in (published.load(), figures):
        assert all(len(source) > 10 for source in rows.source)
        for cluster in set(rows.cluster):
            assert load_cluster(cluster).name == cluster


def test_published_figures_are_met_but_for_those_that_are_known_not_to_be(figures):
    """Within 12 %, as experts ask, or reached, where a machine is accepted from the figure."""
    assert list(figures.missed != "") == list(~figures.met)
    least = figures.least == "yes"
    assert list(figures.met[~least]) == list(figures.error[~least].abs() <= published.CLOSE)
    assert list(figures.met[least]) == list(figures.error[least] >= 0)
    assert figures.error[least].max() > published.CLOSE, "a sound machine reaches more"


def test_two_of_three_figures_are_met_and_few_are_far_off(figures):
    assert (figures.missed == "").mean() > 0.7
    far = figures[(figures.error.abs() > published.FAR) & ~figures.met]
    assert len(far) <= 10
    # A container's settings, a site's RoCE, and one whose least call is 220 us: answers say so.
    between = figures[figures.nodes > 1]
    worst = between.error.groupby(between.site).max()
    assert (len(worst), (worst > 100).sum()) == (SITES, FAR_SITES)
    outside = far[~far.within]
    assert (outside.nodes > 1).all()
    assert (outside.error > 100).all()
    inside = figures.groupby("path").within
    assert (inside.mean() > 0.9)[inside.count() >= 10].all(), "intervals of 90 %, by class of path"
    assert figures.groupby("site").within.all().mean() > 0.9, "and of sites, none has part in them"


def test_trees_of_blackwell_are_no_faster_than_others_measured(figures):
    """Nothing of theirs was fitted: the tuner's bandwidth of a channel, two and four nodes."""
    trees = figures[(figures.cluster == "hgx-b200") & (figures.algorithm == "tree")]
    assert sorted(trees.nodes) == [2, 4]
    assert trees.error.abs().max() < 6
