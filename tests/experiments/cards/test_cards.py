"""Cards against traces, clusters made of cards, FLOPs counted from cards."""

from dataclasses import replace

import pytest

from experiments.cards import card_cluster, check_card, kind_of_group, peak_of, step_flops
from experiments.questions.convert import _filled, _of_cluster
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.places import SHARED
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import ClusterError
from simulator.workload import What
from topologies import catalog, load_cluster
from traces.card.card import WorkloadCard
from traces.card.package import load_package

GPU_SAMPLE = SAMPLE.with_name("gpu-dp2-tp4")
ARCH = {
    "num_params": 1000,
    "num_params_embedding": 100,
    "num_layers": 3,
    "num_heads": 5,
    "head_dim": 7,
}


def card(**sections):
    """A card of the sample's job; keywords change sections: model, data, xpu, network, plan."""
    xpu = {"model": "nvidia_a100", "total_count": 8, "count_per_node": 4}
    data = {
        "version": 1,
        "workload": {
            "model": {"phase": "training", **sections.get("model", {})},
            "data": sections.get("data", {}),
            "hardware": {
                "network_topo": {"bandwidth_gbps": [200, 2400], **sections.get("network", {})},
                "xpu_spec": xpu | sections.get("xpu", {}),
            },
        },
        "Model-executor": {
            "model_plan_parallelization": {"dp_shard": 2, "tp": 4, **sections.get("plan", {})}
        },
    }
    return WorkloadCard.model_validate(data)


@pytest.fixture(scope="module")
def loaded():
    return load_package(GPU_SAMPLE)


def test_a_right_card_is_not_found_fault_with(loaded):
    assert check_card(card(), loaded) == ()
    assert check_card(WorkloadCard(), loaded) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"xpu": {"total_count": 16}}, "total_count is 16, the trace's job has 8 ranks"),
        ({"plan": {"pp": 2}}, "16 ranks, but the job has 8"),
        ({"plan": {"tp": 2, "dp_shard": 4}}, "tp is 2, but the trace has tp[4]"),
        ({"plan": {"tp": 1, "dp_shard": 8}}, "dp is 8, but the trace has dp[2]"),
        (
            {"xpu": {"model": "nvidia_h100"}},
            "'nvidia_h100', the trace was recorded on 'NVIDIA A100",
        ),
        ({"xpu": {"model": "nvidia_a100_40gb"}}, "'nvidia_a100_40gb'"),
        ({"xpu": {"count_per_node": 3}}, "do not fill nodes of 3"),
        ({"model": {"phase": "dreaming"}}, "'dreaming': write training, inference or serving"),
        ({"network": {"bandwidth_gbps": [200, 300]}}, "perhaps 300 is GB/s one way"),
        ({"network": {"bandwidth_gbps": [200, 600]}}, "GB/s of both directions"),
        ({"network": {"bandwidth_gbps": [25, 2400]}}, "scale-out bandwidth 25 Gb/s"),
        ({"network": {"bandwidth_gbps": [200, 300]}}, "perhaps 300 is GB/s, not Gb/s"),
        ({"network": {"bandwidth_gbps": [2, 20]}}, "ran at a busbw of"),
    ],
)
def test_what_the_trace_contradicts_is_one_line(loaded, change, told):
    found = check_card(card(**change), loaded)
    assert any(told in line for line in found), found
    assert all(line and "\n" not in line for line in found)


def test_training_is_told_by_its_kernels(tmp_path, loaded):
    names = tuple(f"{name}Backward0" for name in loaded.workload.names)
    trained = replace(loaded, workload=replace(loaded.workload, names=names))
    assert any(
        "phase is inference" in one
        for one in check_card(card(model={"phase": "inference"}), trained)
    )
    assert check_card(card(), trained) == ()


def test_groups_without_labels_are_products_of_the_sizes(tmp_path):
    job = load_package(write_job(tmp_path / "job", 8))
    plan = {"dp_shard": 3, "tp": 4}
    assert not any("product" in one for one in check_card(card(plan=plan), job))
    halves = {"tp": 2, "dp_shard": 4}
    assert check_card(card(plan=halves), job) == ()


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("tp", "tp"),
        ("mesh_tp", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("mesh_dp_shard", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", None),
        ("default_pg", None),
        ("attempt", None),
        ("", None),
    ],
)
def test_labels_name_kinds_of_parallelism(label, kind):
    assert kind_of_group(label) == kind


@pytest.mark.parametrize("name", catalog())
def test_a_card_of_a_cluster_makes_the_cluster_again(name, loaded):
    cluster = load_cluster(name)
    blank = replace(loaded, accelerator="")
    known = _of_cluster(cluster, blank, None)
    library = known.get("Model-executor", {}).get("communication_library", {"name": "NONE"})
    assert library["name"].lower() == (cluster.library.name if cluster.library else "none")
    made = card_cluster(_filled(WorkloadCard(), known), source="card.yaml")
    assert made.nearest == name
    assert made.cluster.scale_up == cluster.scale_up
    assert made.cluster.scale_out == cluster.scale_out
    assert made.cluster.accelerator == cluster.accelerator
    assert (made.cluster.nodes, made.cluster.ranks_per_node) == (
        cluster.nodes,
        cluster.ranks_per_node,
    )


def test_a_cluster_has_the_bandwidths_of_its_card():
    made = card_cluster(
        card(network={"topology": "slingshot", "bandwidth_gbps": [100, 1600]}), source="c"
    )
    assert made.nearest == "perlmutter"
    assert made.cluster.scale_up.bandwidth == pytest.approx(200e9)
    assert made.cluster.scale_out.bandwidth == pytest.approx(12.5e9)
    assert any("scale_out.bandwidth is 12.5 GB/s on the card, 25 GB/s" in one for one in made.notes)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (None, "is blank"),
        ("abacus_9", "has 'abacus_9'"),
        ("Trainium3", "of that size has 'Trainium3'"),  # two nodes, and there is one without NICs
    ],
)
def test_without_a_known_accelerator_a_cluster_is_asked_for(model, told):
    with pytest.raises(ClusterError, match=told) as caught:
        card_cluster(card(xpu={"model": model}), source="pack/card.yaml")
    assert str(caught.value).startswith("pack/card.yaml: ")
    assert "--cluster" in str(caught.value)


def test_flops_are_counted_as_palm_does():
    data = {"batch_size": 2, "seq_len": 11}
    told = step_flops(card(model={"model_arch": ARCH}, data=data))
    assert told.flops == 2 * 11 * (6 * 900 + 12 * 3 * 5 * 7 * 11)
    local = step_flops(card(model={"model_arch": ARCH}, data=data | {"batch_size_scope": "local"}))
    assert local.flops == 2 * told.flops


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"phase": "inference", "model_arch": ARCH}},
        {"model": {"moe": True, "model_arch": ARCH}},
        {"model": {"granularity": "layer", "model_arch": ARCH}},
        {"model": {"model_arch": ARCH | {"head_dim": None}}},
        {"model": {"model_arch": ARCH}, "data": {"batch_size": 2}},
        {},
    ],
)
def test_flops_that_the_card_does_not_tell_are_not_made_up(change):
    data = {"batch_size": 2, "seq_len": 11}
    told = step_flops(card(**({"data": data} | change)))
    assert told.flops is None
    assert told.why


def test_peaks_go_by_precision():
    peaks = {"bf16": 2.0, "fp8": 4.0}
    assert [peak_of(peaks, one) for one in ("bfloat16", "FP16", "fp8", "fp32", None)] == [
        2.0,
        2.0,
        4.0,
        None,
        None,
    ]


TRACES = SHARED / "traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not at hand")
def test_a_real_trace_shows_a_bandwidth_in_the_wrong_unit():
    """8 A100 with 81 all-reduces of 64 MiB at 196 GB/s: 600 Gb/s is 75 GB/s."""
    real = load_package(TRACES / "megatron-tp8-a100")
    plan = {"tp": 8, "dp_shard": 1}
    xpu = {"count_per_node": 8}
    assert check_card(card(xpu=xpu, plan=plan), real) == ()
    found = check_card(card(xpu=xpu, plan=plan, network={"bandwidth_gbps": [200, 600]}), real)
    assert any("ran at a busbw of" in line and "perhaps 600 is GB/s" in line for line in found)


def timed(loaded, kind="all_gather", ranks=(0, 1, 2, 3), size=2.0**20, transfer=1e-3, joined=None):
    """The sample as if it had one call that took so long, joined by some of its ranks."""
    builder = WorkloadBuilder(job_ranks=8)
    call = builder.call(CallRow(kind, builder.group(ranks, "x"), 0, size, transfer=transfer))
    for rank in ranks if joined is None else joined:
        builder.op(What.COLLECTIVE, rank=rank, lane="x", name="x", duration=0.0, call=call)
    for rank in range(8):
        builder.op(What.COMPUTE, rank=rank, lane="c", name="c", duration=1e-3)
    return replace(loaded, workload=builder.build())


@pytest.mark.parametrize(
    ("call", "busbw"),
    [
        ({}, 0.75 * 2**20 / 1e-3),
        ({"kind": "send_receive", "ranks": (0, 1)}, 2**20 / 1e-3),
        ({"size": 2.0**20 - 1}, None),
        ({"transfer": 1.0001e-6}, 0.75 * 2**20 / 1.0001e-6),
        ({"transfer": 1e-6}, None),
        ({"ranks": (3, 4)}, None),  # across nodes of four
        ({"ranks": (4, 5, 6, 7)}, 0.75 * 2**20 / 1e-3),
        ({"joined": (0, 1, 2)}, None),  # not all members were recorded
    ],
)
def test_a_large_call_in_a_node_is_no_faster_than_the_cards_port(loaded, call, busbw):
    """The card's scale-up bandwidth is 5 % less than what the call ran at, or just within it."""
    job = timed(loaded, **call)
    expected = busbw or 0.75 * 2**20 / 1e-3
    for below, is_found in ((1.06, busbw is not None), (1.04, False)):
        gbps = expected * 8 / 1e9 / below
        found = check_card(
            card(network={"bandwidth_gbps": [gbps / 9, gbps]}, plan={"tp": None}), job
        )
        assert any("ran at a busbw of" in line for line in found) == is_found
        assert any("is GB/s, not Gb/s" in line for line in found) == is_found
    slow = expected * 8 / 1e9 / 8.1
    found = check_card(card(network={"bandwidth_gbps": [slow / 9, slow]}, plan={"tp": None}), job)
    assert not any("is GB/s, not Gb/s" in line for line in found)


def test_switches_that_add_make_no_port_of_a_reduction_faster(loaded):
    h100 = {"model": "nvidia_h100", "count_per_node": 4}
    network = {"bandwidth_gbps": [400, 3600], "topology": "hgx-h100"}
    for kind, is_found in (("all_reduce", False), ("all_gather", True)):
        fast = timed(loaded, kind, size=2.0**30, transfer=1e-3)
        found = check_card(card(xpu=h100, network=network, plan={"tp": None}), fast)
        assert any("ran at a busbw of" in line for line in found) == is_found


@pytest.mark.parametrize("name", catalog())
def test_a_card_with_other_nodes_makes_domains_and_nics_of_their_size(name):
    cluster = load_cluster(name)
    half = cluster.ranks_per_node // 2
    xpu = {"model": cluster.accelerator.name, "total_count": 3 * half + 1, "count_per_node": half}
    network = {"bandwidth_gbps": [None, None], "topology": name}
    if half == 0 or cluster.scale_out is None:
        return
    if "-pcie-8" in name or name == "deepseek-mpft":  # no half of a wired node, or of planes
        with pytest.raises(ClusterError, match=r"^c: no cluster can be made of the card after"):
            card_cluster(card(xpu=xpu, network=network), source="c")
        return
    made = card_cluster(card(xpu=xpu, network=network), source="c")
    nearest = load_cluster(made.nearest)
    is_domain = nearest.scale_up.size == nearest.ranks_per_node
    is_domain &= nearest.scale_up.dimensions is None
    assert made.cluster.ranks_per_node == half
    assert made.cluster.nodes == max(4, nearest.nodes)
    if half == nearest.ranks_per_node:
        assert made.cluster.scale_up == nearest.scale_up
    elif is_domain:
        assert made.cluster.scale_up.size == half
        nics = nearest.scale_out.nics_per_node * half / nearest.ranks_per_node
        assert made.cluster.scale_out.nics_per_node == max(1, round(nics))
    else:
        assert made.cluster.scale_up.size == nearest.scale_up.size
    said = f"the card has {half} ranks a node, {nearest.name} has {nearest.ranks_per_node}"
    assert (said in made.notes) == (half != nearest.ranks_per_node)


def test_a_bandwidth_near_that_of_the_catalogue_is_taken_without_a_word():
    for factor, is_said in ((1.28, False), (1.29, True), (0.785, False), (0.77, True)):
        network = {"topology": "slingshot", "bandwidth_gbps": [200 * factor, 2400]}
        made = card_cluster(card(network=network), source="c")
        assert made.cluster.scale_out.bandwidth == pytest.approx(25e9 * factor)
        assert any(note.startswith("scale_out.bandwidth") for note in made.notes) == is_said


def test_ranks_that_a_card_leaves_out_are_not_compared(loaded):
    one_node = {"total_count": None, "count_per_node": 3}
    assert not any("do not fill" in line for line in check_card(card(xpu=one_node), loaded))
    part = {"total_count": 8, "count_per_node": 8}
    assert not any("do not fill" in line for line in check_card(card(xpu=part), loaded))
    more = {"total_count": 8, "count_per_node": 12}
    assert not any("do not fill" in line for line in check_card(card(xpu=more), loaded))
    no_plan = dict.fromkeys(("dp_shard", "tp"))
    assert check_card(card(plan=no_plan), loaded) == ()
