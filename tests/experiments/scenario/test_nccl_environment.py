"""Variables of NCCL say what is simulated, or why they cannot."""

import re

import pytest

from experiments.questions.generate import nccl_environment
from simulator.support.errors import TwofoldError
from topologies import load_cluster
from topologies.cluster.changed import with_setting

H100, ROCE = load_cluster("hgx-h100"), load_cluster("hgx-h100-roce")


def test_a_machine_as_nccl_finds_it_needs_no_variable():
    assert nccl_environment(H100) == {}


@pytest.mark.parametrize(
    ("what_if", "variable"),
    [
        ("NCCL_PXN_DISABLE = 1", {"NCCL_PXN_DISABLE": "1"}),
        ("NCCL_IB_QPS_PER_CONNECTION = 4", {"NCCL_IB_QPS_PER_CONNECTION": "4"}),
        ("p2p LOC", {"NCCL_P2P_DISABLE": "1"}),
        ("p2p SYS", {"NCCL_P2P_LEVEL": "SYS"}),
    ],
)
def test_variables_make_of_a_machine_what_the_what_if_makes(what_if, variable):
    assert nccl_environment(ROCE, [what_if]) == variable


def test_sockets_turn_rdma_off_and_what_turns_it_off_is_sockets():
    assert nccl_environment(H100, ["transport sockets"]) == {"NCCL_IB_DISABLE": "1"}
    changed = with_setting(H100, "NCCL_IB_DISABLE", "1")
    assert nccl_environment(changed) == {"NCCL_IB_DISABLE": "1"}


def test_forced_algorithms_are_one_variable():
    rules = ["all_reduce=nvls-tree", "all_gather=ring"]
    assert nccl_environment(H100, algorithms=rules) == {
        "NCCL_ALGO": "allreduce:nvlstree;allgather:ring"
    }


@pytest.mark.parametrize(
    ("cluster", "what_ifs", "algorithms", "reason"),
    [
        ("hgx-h100", ["scale_out.bandwidth x2"], [], "changes the machine or the step"),
        ("hgx-h100", ["rank 3 compute x1.2"], [], "changes the machine or the step"),
        ("hgx-h100", [], ["all_reduce[1MiB..]=ring"], "for all sizes"),
        ("hgx-h100", [], ["all_to_all=direct"], "has no direct for all_to_all"),
        ("tpu-v5p", [], [], "runs xla"),
    ],
)
def test_what_no_variable_can_say_is_refused(cluster, what_ifs, algorithms, reason):
    with pytest.raises(TwofoldError, match=re.escape(reason)):
        nccl_environment(load_cluster(cluster), what_ifs, algorithms)


def test_without_nvls_a_node_has_rings_and_one_that_has_none_stays():
    assert not with_setting(H100, "NCCL_NVLS_ENABLE", "0").scale_up.in_network_reduction
    assert with_setting(H100, "NCCL_NVLS_ENABLE", "1") == H100
    a100 = load_cluster("dgx-a100")
    assert with_setting(a100, "NCCL_NVLS_ENABLE", "0") == a100


def test_queue_pairs_of_one_switch_are_refused_with_a_fabric_that_hashes_them():
    with pytest.raises(TwofoldError, match="topology scale_out=leaf_spine and NCCL_IB_QPS"):
        with_setting(H100, "NCCL_IB_QPS_PER_CONNECTION", "4")
