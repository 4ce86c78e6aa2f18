"""Cluster files: what is read, what is refused, and the what-ifs on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import ClusterError, TwofoldError, WhatIfError
from topologies import Cluster, catalog, changed, load_cluster, parse_cluster, resource_values
from topologies.cluster.catalog import link_doubts
from topologies.cluster.fabrics import CallErrors, HowKnown, TierErrors
from topologies.cluster.node import NVLINKS, Calibrated, LinkFactors
from topologies.cluster.prices import Draw, Price, Prices
from topologies.cluster.wiring import Cable, Wiring

FILE = """\
name: small
accelerator: {name: chip, peak: {bf16: 100 TFLOP/s}, memory_bandwidth: 1 TB/s}
ranks_per_node: 4
nodes: 8
scale_up: {topology: switch, size: 4, bandwidth: 100 GB/s, efficiency: 0.8, latency: 2 us}
scale_out: {topology: switch, nics_per_node: 4, bandwidth: 100 Gbit/s, latency: 10 us}
pcie: {bandwidth: 30 GB/s}
collective_overhead: 5 us
sources: {nodes: counted}
"""


def small(old: str = "", new: str = "") -> Cluster:
    assert old in FILE
    return parse_cluster(FILE.replace(old, new, 1) if old else FILE, source="small.yaml")


def refusal(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text, source="small.yaml")
    message = str(caught.value)
    assert message.startswith("small.yaml: ")
    assert "\n" not in message
    return message


def test_quantities_are_si():
    cluster = small()
    assert cluster.scale_out.bandwidth == 12.5e9
    assert cluster.scale_up.latency == pytest.approx(2e-6)
    assert cluster.accelerator.peak == {"bf16": 100e12}
    assert cluster.capacity == 32


@pytest.mark.parametrize(
    ("topology", "size", "links"),
    [
        ("switch", 8, 1),
        ("fully_connected", 8, 7),
        ("ring", 8, 2),
        ("torus", 16, 4),
        ("mesh", 16, 4),
    ],
)
def test_a_ranks_bandwidth_is_divided_over_its_links(topology, size, links):
    grid = ", dimensions: 4x4" if topology in ("torus", "mesh") else ""
    cluster = small("topology: switch, size: 4", f"topology: {topology}, size: {size}{grid}")
    assert cluster.scale_up.link_bandwidth == pytest.approx(100e9 * 0.8 / links)


def test_a_file_is_read_by_its_path(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(FILE, encoding="utf-8")
    assert load_cluster(path) == load_cluster(str(path)) == small()


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("bandwidth: 100 GB/s", "bandwidth: 100", ("scale_up.bandwidth: 100", "with a unit")),
        (
            "bandwidth: 100 GB/s",
            "bandwidth: 100 gbps",
            ("scale_up.bandwidth", "'100 gbps'", "100 Gbit/s"),
        ),
        ("bandwidth: 100 GB/s", "bandwith: 1 GB/s", ("scale_up.bandwith", "mean bandwidth?")),
        ("bandwidth: 100 GB/s", "bandwidth: 0 GB/s", ("scale_up.bandwidth: '0 GB/s'", "greater")),
        ("latency: 10 us", "latency: 1e999 s", ("scale_out.latency", "outside the accepted range")),
        ("latency: 10 us", "latency: 3 s", ("scale_out.latency: 3 s is not from 0 s to 1 s",)),
        (
            "memory_bandwidth: 1 TB/s",
            "memory_bandwidth: 250 B/s",
            ("'250 B/s' is outside the accepted range, 1 MB/s",),
        ),
        ("latency: 10 us", "latencies: 1 us", ("scale_out.latencies", "mean latency?")),
        ("nodes: 8", "nodes: 8\ncolour: red", ("colour: no such field", "accepted: name, ")),
        ("nodes: 8", "nodess: 8", ("nodess", "mean nodes?", "nodes: missing")),
        ("nodes: 8", "nodes: eight", ("nodes: 'eight'", "integer")),
        ("nodes: 8", "nodes: true", ("nodes: True", "integer")),
        ("nodes: 8", "nodes: 0", ("nodes: 0", "greater than 0")),
        ("nodes: 8", "nodes: 8\nnodes: 9", ("'nodes' is given twice",)),
        ("nodes: 8", "nodes: 8\n1: 2", ("1", "keys should be strings")),
        ("efficiency: 0.8", "efficiency: 1.8", ("scale_up.efficiency: 1.8", "equal to 1")),
        ("topology: switch, size", "topology: swich, size", ("'swich'", "'fully_connected'")),
        (
            "topology: switch, nics",
            "topology: swich, nics",
            ("'swich'", "switch, leaf_spine, rail, fat_tree, torus, dragonfly"),
        ),
        ("topology: switch, nics", "nics", ("scale_out.topology: missing",)),
        ("topology: switch, nics", "topology: dragonfly, nics", ("scale_out.groups: missing",)),
        ("size: 4", "size: 6", ("scale_up.size 6", "ranks_per_node 4")),
        ("latency: 2 us", "latency: 20 ms", ("scale_up.latency: 20 ms is not", "10 ms")),
        ("10 us}", "10 us, message_overhead: 1 s}", ("message_overhead: 1 s is not from",)),
        ("10 us}", "10 us, transport: efa, link: roce}", ("efa is of another link than 'roce'",)),
        (
            "nodes: 8",
            "nodes: 8\nlibrary: {name: nccl, ranks_per_process: 3}",
            ("library.ranks_per_process does not divide ranks_per_node 4",),
        ),
        ("nodes: 8", "nodes: 8\nprices: {nic: 24 GUSD}", ("price: 24000 MUSD is not from",)),
        ("nodes: 8", "nodes: 8\npower: {nic: 1 GW}", ("idle: 1 GW is not from",)),
        ("nics_per_node: 4", "nics_per_node: 4000000", ("nics_per_node: 4000000", "1024")),
        ("nodes: 8", "nodes: 8\nprices: {energy: 60 USD/kWh}", ("energy", "is the unit right?")),
        *(
            ("{name: chip, peak: {bf16: 100 TFLOP/s}", f"{{name: H100-SXM5-80GB, {wrong}", said)
            for wrong, said in (
                ("peak: {bf16: 989 GFLOP/s}", ("bf16: H100-SXM5-80GB has 98", "unit right?")),
                ("memory: 80 KB", ("accelerator.memory: 80 kB is not from", "unit right?")),
                ("memory: 700 MB", ("memory: H100-SXM5-80GB has", "unit right?")),
                ("memory: 80 TB", ("memory: H100-SXM5-80GB has", "unit right?")),
            )
        ),
        ("size: 4", "size: 4, dimensions: 2x2", ("scale_up: dimensions apply only",)),
        ("switch, size: 4", "torus, size: 4", ("scale_up: dimensions apply only",)),
        ("switch, size: 4", "torus, size: 4, dimensions: 2x4", ("not the product",)),
        ("switch, size: 4", "torus, size: 4, dimensions: 2*2", ("'2*2'", "'4x4'")),
        ("pcie: {bandwidth: 30 GB/s}", "pcie: 30 GB/s", ("pcie: '30 GB/s'", "table of fields")),
        ("pcie: {bandwidth: 30 GB/s}", "pcie: {lanes: 4}", ("pcie.bandwidth: missing",)),
        ("{nodes: counted}", "{node: counted}", ("sources.node", "no such number")),
        ("bf16: 100 TFLOP/s", "bf16: 100 GFLOP/s", ("peak.bf16 and memory_bandwidth",)),
        ("bf16: 100 TFLOP/s", "fp8: 100 PFLOP/s", ("peak.fp8 and memory_bandwidth",)),
        (
            "bf16: 100 TFLOP/s",
            "bf16: 100 TFLOP/s, fp8: 3 TFLOP/s",
            ("peak.fp8 is less than half of peak.bf16",),
        ),
        (
            "bandwidth: 100 GB/s",
            "bandwidth: 200 KB/s",
            ("scale_up.bandwidth: '200 KB/s'", "1 MB/s"),
        ),
        ("bandwidth: 100 GB/s", "bandwidth: 101 TB/s", ("scale_up.bandwidth: 101 TB/s", "unit")),
        ("pcie: {bandwidth: 30 GB/s", "pcie: {bandwidth: 30 TB/s", ("pcie.bandwidth: 30 TB/s",)),
        ("pcie: {bandwidth: 30 GB/s", "pcie: {bandwidth: 30 MB/s", ("pcie.bandwidth: 30 MB/s",)),
        ("overhead: 5 us", "overhead: 11 ms", ("collective_overhead: 11 ms is not from",)),
        ("nodes: 8", "nodes: 8\nsteps: {kernel_time: 101.0, runs: 3}", ("kernel_time: 101", "100")),
        (
            "nodes: 8",
            "nodes: 8\ncalibration: {all_reduce: {overhead: 10001.0}}",
            ("10001", "10000"),
        ),
        ("efficiency: 0.8", "efficiency: 0.008", ("scale_up.efficiency: 0.008", "0.01")),
        *(
            ("nodes: 8", f"nodes: 8\nlibrary: {{name: nccl, version: '{version}'}}", ("version",))
            for version in ("latest", "2", "-2.27.3", "22703", "2.27x")
        ),
        *(
            ("topology: switch, nics", f"topology: {fabric}, nics", (f"scale_out.{field}", most))
            for fabric, field, most in (
                ("leaf_spine, nodes_per_leaf: 4, spines: 65537", "spines", "65536"),
                ("fat_tree, ports: 65538", "ports", "65536"),
                ("rail, nodes_per_pod: 4, spines: 65537", "spines", "65536"),
                (
                    "rail, nodes_per_pod: 8, spines: 2, oversubscription: 1001",
                    "oversubscription",
                    "1000",
                ),
            )
        ),
        ("nodes: 8", "nodes: 8\nhost: {cpu: vax}", ("host.cpu: 'vax'", "'grace'")),
        ("nodes: 8", "nodes: 8\nhost: {cup: amd}", ("host.cup", "mean cpu?", "cpu: missing")),
        ("nodes: 8", "nodes: 8\nlibrary: {name: mpi}", ("library.name: 'mpi'", "'nccl'")),
        ("{name: chip,", "{name: chip, generation: fermi,", ("accelerator.generation", "'volta'")),
        (
            "{name: chip,",
            "{name: H100-SXM5-80GB, generation: ampere,",
            ("accelerator", "generation: H100-SXM5-80GB is hopper, not ampere"),
        ),
        ("size: 4,", "size: 4, link: nvlnk,", ("scale_up.link: 'nvlnk'", "'nvlink3'")),
        ("size: 4,", "size: 4, in_network_reduction: 1,", ("in_network_reduction: 1", "bool")),
        ("switch, size: 4", "ring, size: 4, in_network_reduction: true", ("needs a switch",)),
        ("size: 4,", "size: 4, wrap_multiple: 4,", ("wrap_multiple applies only to a torus",)),
        ("topology: switch, nics", "topology: fat_tree, ports: 3, nics", ("even number of ports",)),
        ("topology: switch, nics", "topology: fat_tree, ports: 4, nics", ("room for 4 nodes",)),
        (
            "topology: switch, nics",
            "topology: rail, nodes_per_pod: 4, spines: 2, oversubscription: 0.5, nics",
            ("scale_out.oversubscription: 0.5", "equal to 1"),
        ),
        (
            "topology: switch, nics",
            "topology: rail, nodes_per_pd: 4, nics",
            ("mean nodes_per_pod?",),
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_accepted(old, new, parts):
    assert old in FILE
    message = refusal(FILE.replace(old, new, 1))
    for part in parts:
        assert part in message


def test_nvlinks_are_of_their_generation_and_what_ifs_may_ask_for_more():
    text = FILE.replace("size: 4,", "size: 4, link: nvlink3,")
    ampere = text.replace("{name: chip,", "{name: A, generation: ampere,")
    assert "scale_up.link: ici is not of A" in refusal(ampere.replace("nvlink3", "ici"))
    message = refusal(ampere + "library: {name: rccl}\n")
    assert "library.name: rccl does not run on A" in message
    bits = text.replace("bandwidth: 100 GB/s", "bandwidth: 4800 GB/s")
    assert "4.8 TB/s is not from 2.5 GB/s to 3 TB/s in one direction: is" in refusal(bits)
    hopper = text.replace("{name: chip,", "{name: chip, generation: hopper,")
    assert "scale_up.link: nvlink3 is of ampere, not of hopper" in refusal(hopper)
    cluster = parse_cluster(text.replace("chip,", "chip, generation: ampere,"), source="file")
    assert changed(cluster, "scale_up.bandwidth", 1e4).scale_up.bandwidth == 1e15
    domains = ampere.replace("ranks_per_node: 4", "ranks_per_node: 260")
    assert "ranks_per_node: 65 scale-up domains in one node" in refusal(domains)


@pytest.mark.parametrize("name", catalog())
def test_a_scale_up_bandwidth_of_both_directions_is_doubted(name):
    cluster = load_cluster(name)
    assert link_doubts(cluster) == ()
    for tier in ("scale_up", "scale_out"):
        if getattr(cluster, tier) is not None:
            (told,) = link_doubts(changed(cluster, f"{tier}.latency", 1 / 50_000))
            assert told.startswith(f"{tier}.latency ")
            assert told.endswith("light takes longer; check the unit")
    doubled = link_doubts(changed(cluster, "scale_up.bandwidth", 2))
    link = cluster.scale_up.link or ""
    whole = not cluster.accelerator.name.startswith("H800")  # of eight links
    assert bool(doubled) == (whole and link in {*NVLINKS, "pcie4", "pcie5"})


@pytest.mark.parametrize("version", ["2.27", "2.27.3", "v2.27.3", "2.27.3+cuda12.8", "2.18.5-1"])
def test_versions_of_a_library_are_taken_as_they_are_printed(version):
    text = FILE.replace("nodes: 8", f"nodes: 8\nlibrary: {{name: nccl, version: '{version}'}}")
    assert parse_cluster(text, source="file").library.version == version


@pytest.mark.parametrize(
    ("table", "model"),
    [
        ("link_factors: {scale_out: {zzz: 1}}", LinkFactors),
        ("calibration: {all_reduce: {zzz: 1}}", Calibrated),
        ("wiring: {zzz: 1}", Wiring),
        ("wiring: {cables: [{zzz: 1}]}", Cable),
        ("prices: {zzz: 1}", Prices),
        ("prices: {accelerator: {zzz: 1}}", Price),
        ("power: {node: {zzz: 1}}", Draw),
        ("known: {zzz: 1}", HowKnown),
        ("known: {errors: {scale_up: {zzz: 1}}}", TierErrors),
        ("known: {errors: {scale_up: {small: {zzz: 1}}}}", CallErrors),
    ],
)
def test_a_field_that_no_table_has_is_refused_with_those_it_has(table, model):
    message = refusal(f"{FILE}\n{table}\n")
    assert f"zzz: no such field; accepted: {', '.join(model.model_fields)}" in message


def test_a_machine_of_several_domains_needs_a_scale_out():
    lines = [line for line in FILE.splitlines() if not line.startswith("scale_out")]
    assert "no scale_out to join them" in refusal("\n".join(lines))


def test_a_fabric_must_have_room_for_the_nodes():
    torus = "topology: torus, dimensions: 2x2, nics"
    assert "room for 4 nodes, not for 8" in refusal(FILE.replace("topology: switch, nics", torus))


def test_the_groups_of_a_dragonfly_must_reach_each_other():
    dragonfly = (
        "topology: dragonfly, groups: 8, routers_per_group: 2, nodes_per_group: 1,"
        " global_links_per_router: 3, nics"
    )
    message = refusal(FILE.replace("topology: switch, nics", dragonfly))
    assert "8 groups, but the global links of one reach only 6 others" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("- name: small", "a list"),
        ("small", "a str"),
        ("name: {", "not valid YAML"),
        ("\t", "not valid YAML"),
        ("[" * 100_000, "not valid YAML"),
        ("2020-99-99", "not valid YAML"),
        ("? {a: b}\n: c", "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
    ],
)
def test_what_is_no_table_is_refused(text, part):
    assert part in refusal(text)


@pytest.mark.parametrize("sources", ["3", ".nan", "[1]", "[[nodes, counted]]"])
def test_sources_that_are_no_table_are_refused_beside_a_data_sheet(sources):
    sheet = FILE.replace(
        "{name: chip, peak: {bf16: 100 TFLOP/s}, memory_bandwidth: 1 TB/s}", "H100-SXM5-80GB"
    )
    assert "sources: " in refusal(sheet.replace("{nodes: counted}", sources))


def test_a_name_that_is_nearly_one_of_the_catalogue_says_which():
    with pytest.raises(ClusterError, match=r"did you mean dgx-a100, .*'twofold clusters' lists"):
        load_cluster("dgx-a10")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name, reason in (
        ("none.yaml", "no such file"),
        (".", "directory"),
        ("bytes.yaml", "not UTF-8 text"),
    ):
        with pytest.raises(ClusterError, match=f"cannot be read as a cluster: .*{reason}"):
            load_cluster(tmp_path / name)
    with pytest.raises(ClusterError, match=r"^n{300}: cannot be read as a cluster: file name too"):
        load_cluster("n" * 300)


def test_the_values_one_may_double_come_in_a_fixed_order():
    assert list(resource_values(small()).items()) == [
        ("scale_up.bandwidth", 100e9),
        ("scale_up.latency", pytest.approx(2e-6)),
        ("scale_up.size", 4),
        ("scale_out.bandwidth", 12.5e9),
        ("scale_out.latency", pytest.approx(10e-6)),
        ("scale_out.nics_per_node", 4),
        ("pcie.bandwidth", 30e9),
    ]


@given(
    resource=st.sampled_from(list(resource_values(load_cluster("perlmutter")))),
    factor=st.sampled_from([0.5, 2, 4]),
)
def test_a_change_multiplies_one_value_and_no_other(resource, factor):
    cluster = load_cluster("perlmutter")
    before, after = resource_values(cluster), resource_values(changed(cluster, resource, factor))
    before[resource] *= factor
    assert after == pytest.approx(before)


def test_a_change_is_noted_in_the_sources():
    doubled = changed(load_cluster("dgx-a100"), "scale_up.bandwidth", 2)
    assert doubled.sources["scale_up.bandwidth"].startswith("2 times: github")
    assert (
        doubled.sources["scale_up.latency"] == load_cluster("dgx-a100").sources["scale_up.latency"]
    )


def test_a_change_of_a_fabric_takes_its_routers_with_it():
    cluster = load_cluster("perlmutter")
    halved = changed(cluster, "scale_out.latency", 0.5)
    assert halved.scale_out.hop_latency == pytest.approx(cluster.scale_out.hop_latency / 2)


def test_a_torus_grows_where_it_is_short_and_shrinks_where_it_is_long():
    cluster = load_cluster("tpu-v6e")
    grown = changed(cluster, "scale_up.size", 2)
    assert (grown.scale_up.size, grown.scale_up.dimensions) == (512, (32, 16))
    assert changed(grown, "scale_up.size", 2).scale_up.dimensions == (32, 32)
    assert changed(grown, "scale_up.size", 0.5).scale_up.dimensions == (16, 16)


@pytest.mark.parametrize(
    ("resource", "factor", "message"),
    [
        ("scale_up.bandwith", 2, "did you mean scale_up.bandwidth"),
        ("gravity", 2, "it has scale_up.bandwidth, "),
        ("scale_up.bandwidth", 0, "not positive"),
        ("scale_up.bandwidth", float("inf"), "not positive and finite"),
        ("scale_up.bandwidth", float("nan"), "not positive"),
        ("scale_up.size", 1.3, "not a whole number"),
        ("scale_up.size", 1.5, "neither a multiple nor a divisor"),
        ("scale_out.nics_per_node", 0.1, "not a whole number"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(resource, factor, message):
    with pytest.raises(WhatIfError, match=message):
        changed(small(), resource, factor)


def test_a_torus_whose_dimension_does_not_divide_is_refused():
    with pytest.raises(WhatIfError, match="times dimension 16 is not a whole number"):
        changed(load_cluster("tpu-v6e"), "scale_up.size", 1.03125)


def test_a_cluster_without_scale_out_has_none_to_change():
    lines = [line for line in FILE.splitlines() if not line.startswith("scale_out")]
    one = parse_cluster("\n".join(lines).replace("nodes: 8", "nodes: 1"), source="one.yaml")
    scale_up = [name for name in resource_values(one) if name != "pcie.bandwidth"]
    assert scale_up == ["scale_up.bandwidth", "scale_up.latency", "scale_up.size"]
    with pytest.raises(WhatIfError, match="small has no scale_out"):
        changed(one, "scale_out.bandwidth", 2)


@pytest.mark.parametrize(
    ("resource", "factor", "said"),
    [
        ("scale_out.latency", 1000, "scale_out.latency 2.7 ms is long for nccl over RDMA"),
        ("scale_up.bandwidth", 1 / 8, "37.5 GB/s is that of nvlink3 in Gbit/s, not 300 GB/s"),
    ],
)
def test_values_in_units_that_are_plausible_are_doubted(resource, factor, said):
    (doubt,) = link_doubts(changed(load_cluster("dgx-a100"), resource, factor))
    assert said in doubt


def test_a_switch_slower_than_the_step_through_it_is_doubted():
    cluster = load_cluster("hgx-h100-roce")
    slow = cluster.scale_out.model_copy(update={"hop_latency": 20e-6})
    (doubt,) = link_doubts(cluster.model_copy(update={"scale_out": slow}))
    assert doubt.startswith("scale_out.hop_latency of one switch is longer")


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"nodes": "140"}, "Cluster: nodes '140' is not int"),
        ({"node": 3}, "Cluster has no 'node'"),
        ({"scale_out": {"bandwidth": 1e9}}, "Cluster: scale_out {'bandwidth'"),
    ],
)
def test_a_copy_with_values_of_another_type_is_refused(update, said):
    with pytest.raises(TwofoldError, match=said):
        load_cluster("dgx-a100").model_copy(update=update)


def test_a_nic_faster_than_the_ports_that_lead_to_it_is_doubted():
    cluster = load_cluster("dgx-a100")
    (told,) = link_doubts(changed(cluster, "scale_out.bandwidth", 8))
    assert told == "scale_out.bandwidth of a node's NICs is over twice what its pcie carries"
    shared = cluster.scale_out.model_copy(update={"nics_per_node": 1, "bandwidth": 200e9})
    assert link_doubts(cluster.model_copy(update={"scale_out": shared})) == ()


def test_what_names_no_cluster_is_refused_in_a_line():
    with pytest.raises(ClusterError, match="cluster 5: write a name, a path or a Cluster"):
        load_cluster(5)
