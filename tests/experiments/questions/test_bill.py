"""``bill``: what is added up is what is listed, and what nobody publishes is named."""

import json

import pytest

from experiments.questions.clusters import bill
from simulator.support.errors import ClusterError


def test_what_nobody_publishes_is_named_and_nothing_is_added_up() -> None:
    answer = json.loads(bill("mi300x-8", ranks=16).to_json())
    assert answer["missing"] == ["prices.accelerator"]
    assert answer["cost_usd"] is None
    assert answer["active_w"] > 0


def test_another_network_is_another_bill() -> None:
    plain = bill("hgx-h100", ranks=1024)
    tree = bill("hgx-h100", ranks=1024, topologies=["scale_out=fat_tree:16"])
    assert (plain.bill.switches, tree.bill.switches) == (48, 320)
    assert plain.bill.count("nic") == tree.bill.count("nic")


def test_a_job_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ClusterError, match="do not fit"):
        bill("dgx-a100", ranks=10**6)
