"""What planning finds out on a network is found out once for all questions that tests ask there.

Scenarios that are made of each other share their site already; here those that are equal do. That
what is remembered changes no answer is a law of its own: see ``test_design_points`` and NCCL's.
"""

import pytest

from experiments.scenario.scenario import Site

MAKE = Site.of
"""What makes sites, for a test that counts what is built."""
_KEPT = 64
_MOST_RANKS = 64
"""Sites that are held, and ranks of the largest of them: what is found out takes memory."""


@pytest.fixture(autouse=True, scope="session")
def sites_are_found_out_once():
    """Give scenarios of one size on equal clusters one site."""
    kept = []

    def of_once(scenario, similar):
        if scenario.ranks > _MOST_RANKS:
            return MAKE(scenario, similar)
        for place in reversed(range(len(kept))):
            site = kept[place]
            related = similar is None or site.findings is similar.findings
            if related and site.cluster.name == scenario.cluster.name and site.is_that_of(scenario):
                kept.append(kept.pop(place))
                return site
        kept.append(MAKE(scenario, similar))
        del kept[:-_KEPT]
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "of", staticmethod(of_once))
        yield
