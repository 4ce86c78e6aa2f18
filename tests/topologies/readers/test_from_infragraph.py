"""InfraGraph files as clusters: slices, schemes, composed devices, fabrics, bad files.

The infrastructure is made by hand after the published schema (infragraph.dev, 2.4).
"""

import json

import pytest
import yaml

from simulator.support.errors import ClusterError
from topologies import build, load_cluster, parse_cluster
from topologies.cluster.catalog import cluster_text
from topologies.readers.from_infragraph import from_infragraph

CLOS = """\
name: two tier clos
devices:
- name: dgx
  components:
  - {name: cpu, choice: cpu, count: 2}
  - {name: npu, choice: npu, count: 8}
  - {name: nvlsw, choice: custom, count: 2, custom: {type: nvswitch}}
  - {name: pciesw, choice: switch, count: 4}
  - {name: nic, choice: nic, count: 8}
  - {name: mgmt, choice: nic, count: 1}
  links:
  - {name: fabric, description: AMD Infinity Fabric}
  - {name: pcie}
  - {name: nvlink}
  edges:
  - {ep1: {component: cpu}, ep2: {component: cpu}, scheme: many2many, link: fabric}
  - {ep1: {component: npu}, ep2: {component: nvlsw}, scheme: many2many, link: nvlink}
  - {ep1: {component: "cpu[0]"}, ep2: {component: "pciesw[0:2]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "cpu[1]"}, ep2: {component: "pciesw[2:4]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "npu[0:2]"}, ep2: {component: "pciesw[0]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "npu[2:4]"}, ep2: {component: "pciesw[1]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "npu[4:6]"}, ep2: {component: "pciesw[2]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "npu[6:8]"}, ep2: {component: "pciesw[3]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "nic[0:2]"}, ep2: {component: "pciesw[0]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "nic[2:4]"}, ep2: {component: "pciesw[1]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "nic[4:6]"}, ep2: {component: "pciesw[2]"}, scheme: many2many, link: pcie}
  - {ep1: {component: "nic[6:8]"}, ep2: {component: "pciesw[3]"}, scheme: many2many, link: pcie}
  - {ep1: {component: mgmt}, ep2: {component: "cpu[0]"}, scheme: many2many, link: pcie}
- name: switch
  components:
  - {name: asic, choice: switch, count: 1}
  - {name: port, choice: port, count: 32}
  links: [{name: ic}]
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
links:
- {name: leaf-link, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 200}}}
- {name: spine-link, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}}}
instances:
- {name: host, device: dgx, count: 4}
- {name: leaf, device: switch, count: 2}
- {name: spine, device: switch, count: 2}
edges:
- ep1: {instance: "host[0:2]", component: "nic"}
  ep2: {instance: "leaf[0]", component: "port[0:16]"}
  scheme: one2one
  link: leaf-link
- ep1: {instance: "host[2:4]", component: "nic"}
  ep2: {instance: "leaf[1]", component: "port[0:16]"}
  scheme: one2one
  link: leaf-link
- ep1: {instance: "leaf[0]", component: "port[16:18]"}
  ep2: {instance: "spine", component: "port[0]"}
  scheme: one2one
  link: spine-link
- ep1: {instance: "leaf[1]", component: "port[16:18]"}
  ep2: {instance: "spine", component: "port[1]"}
  scheme: one2one
  link: spine-link
"""


def read(tmp_path, table, like="dgx-a100", name="clos.yaml"):
    path = tmp_path / name
    path.write_text(table if isinstance(table, str) else yaml.safe_dump(table))
    return from_infragraph(path, load_cluster(like))


def clos():
    return yaml.safe_load(CLOS)


def test_the_device_with_accelerators_is_the_node(tmp_path):
    """Every figure is the file's, or that of the cluster that it is like."""
    cluster, like = read(tmp_path, CLOS), load_cluster("dgx-a100")
    assert parse_cluster(cluster_text(cluster), source="text") == cluster
    assert cluster.wiring.own_nics() == list(range(8))
    assert (cluster.accelerator, cluster.host) == (like.accelerator, like.host)
    assert cluster.library.version == like.library.version
    table = yaml.safe_load(cluster_text(cluster))
    assert (table["nodes"], table["ranks_per_node"], table["pcie"]) == (
        4,
        8,
        {"bandwidth": "31 GB/s"},
    )
    assert table["scale_up"] == {
        **{"topology": "wired", "size": 8, "bandwidth": "300 GB/s", "latency": "0.6 us"},
        **{"efficiency": 0.78, "link": "nvlink3"},
    }
    assert table["scale_out"] == {
        **{"nics_per_node": 8, "bandwidth": "25 GB/s", "latency": "2.7 us", "efficiency": 0.96},
        **{"topology": "leaf_spine", "nodes_per_leaf": 2, "spines": 2, "oversubscription": 4.0},
    }
    widths = {cable.ends: (cable.tier, cable.width) for cable in cluster.wiring.cables}
    lanes = ("pcie", 31.0)
    assert widths == {
        ("cpu.0", "cpu.1"): ("pcie", pytest.approx(64 / 3)),
        **{("fabric0", f"gpu{n}"): ("scale_up", 2.0) for n in range(8)},
        **{(f"cpu.{n // 2}", f"pciesw.{n}"): lanes for n in range(4)},
        **{(f"gpu{n}", f"pciesw.{n // 2}"): lanes for n in range(8)},
        **{(f"nic{n}", f"pciesw.{n // 2}"): lanes for n in range(8)},
        ("cpu.0", "mgmt.0"): lanes,
    }
    fields = ("nics_per_node", "bandwidth", "nodes_per_leaf", "spines", "oversubscription")
    drawn = {path for path, source in cluster.sources.items() if source == "clos.yaml"}
    assert drawn == {
        *("ranks_per_node", "nodes", "scale_up.size", "wiring.cables"),
        *(f"scale_out.{field}" for field in fields),
    }
    for path, source in cluster.sources.items():
        own = {
            "pcie.bandwidth": "taken from dgx-a100",
            "scale_up.bandwidth": "clos.yaml (2 links of 150 GB/s); taken from dgx-a100",
        }
        assert path in drawn or source == own.get(
            path, f"taken from dgx-a100: {like.sources[path]}"
        )


def test_leaves_that_reach_all_spines_are_leaf_spine(tmp_path):
    fabric = read(tmp_path, CLOS).scale_out
    assert (fabric.topology, fabric.nodes_per_leaf, fabric.spines) == ("leaf_spine", 2, 2)
    assert fabric.oversubscription == 16 * 200 / (2 * 400)
    network = build(read(tmp_path, CLOS), 32)
    up = [
        network.link(n).bandwidth
        for n in range(len(network))
        if str(network.link(n).target).startswith("spine")
    ]
    assert up == pytest.approx([50e9 * fabric.efficiency] * 4)
    assert fabric.bandwidth == 25e9


def test_one_switch_is_a_switch(tmp_path):
    table = clos()
    table["instances"] = table["instances"][:2]
    table["instances"][1]["count"] = 1
    table["devices"][1]["components"][1]["count"] = 64
    table["edges"] = [
        {
            "ep1": {"instance": "host", "component": "nic"},
            "ep2": {"instance": "leaf", "component": "port[0:32]"},
            "scheme": "one2one",
            "link": "leaf-link",
        }
    ]
    assert read(tmp_path, table).scale_out.topology == "switch"


def test_bandwidths_that_are_told_are_taken(tmp_path):
    table = clos()
    speed = {"choice": "gigabytes_per_second", "gigabytes_per_second": 100}
    table["devices"][0]["links"][2]["physical"] = {"bandwidth": speed}
    cluster = read(tmp_path, table)
    assert cluster.scale_up.bandwidth == 2 * 100e9
    assert "clos.yaml" in cluster.sources["scale_up.bandwidth"]


def test_json_and_an_outer_table_are_read_too(tmp_path):
    text = json.dumps({"infrastructure": clos(), "annotations": {}})
    assert read(tmp_path, text, name="clos.json").wiring == read(tmp_path, CLOS).wiring


def test_xpu_is_the_newer_word_for_npu(tmp_path):
    text = CLOS.replace("npu", "xpu")
    assert read(tmp_path, text).wiring == read(tmp_path, CLOS).wiring


def test_a_card_within_a_device_is_written_out(tmp_path):
    table = clos()
    host = table["devices"][0]
    host["components"][4] = {"name": "card", "choice": "device", "count": 8}
    host["edges"] = [
        json.loads(json.dumps(edge).replace('"nic', '"card').replace("]", "].asic", 1))
        if '"nic' in json.dumps(edge["ep1"])
        else edge
        for edge in host["edges"]
    ]
    for edge in host["edges"]:
        if edge["ep1"]["component"].startswith("card"):
            device, _, _ = edge["ep1"]["component"].partition(".")
            edge["ep1"] = {"device": device, "component": "asic"}
    table["devices"].append(
        {
            "name": "card",
            "components": [
                {"name": "asic", "choice": "custom", "custom": {"type": "asic"}, "count": 1},
                {"name": "port", "choice": "port", "count": 1},
            ],
            "links": [{"name": "ic"}],
            "edges": [
                {
                    "ep1": {"component": "asic"},
                    "ep2": {"component": "port"},
                    "scheme": "one2one",
                    "link": "ic",
                }
            ],
        }
    )
    for edge in table["edges"][:2]:
        edge["ep1"]["component"] = "card.port"
    cluster = read(tmp_path, table)
    assert cluster.wiring.nics == 8
    assert ("card.2.asic.0", "nic2") in {cable.ends for cable in cluster.wiring.cables}
    assert cluster.wiring.own_nics() == list(range(8))


def test_the_older_way_to_say_a_scheme_is_read(tmp_path):
    older = CLOS.replace("scheme: many2many", "many2many: true")
    older = older.replace("scheme: one2one", "many2many: false")
    assert older != CLOS
    assert read(tmp_path, older).wiring == read(tmp_path, CLOS).wiring


def test_a_port_amid_a_card_is_beside_its_nic(tmp_path):
    table = clos()
    host = table["devices"][0]
    host["components"].append({"name": "qsfp", "choice": "port", "count": 8})
    host["links"].append({"name": "serdes"})
    ends = {"ep1": {"component": "nic"}, "ep2": {"component": "qsfp"}}
    host["edges"].append({**ends, "scheme": "one2one", "link": "serdes"})
    cluster = read(tmp_path, table)
    ends = {cable.ends for cable in cluster.wiring.cables}
    assert {("nic.5", "nic5"), ("nic.5", "pciesw.2"), ("nic.5", "qsfp.5")} <= ends
    assert cluster.wiring.own_nics() == list(range(8))


BAD = {
    "draft": (CLOS + "connections: [host.0.nic.0.eth.leaf.0.port.0]\n", "the first draft"),
    "no graph": ("just: words\n", "no devices and instances"),
    "device": (CLOS.replace("device: dgx", "device: dgy"), "device 'dgy'"),
    "component": (CLOS.replace("component: npu}", "component: gpu}"), "there is no 'gpu'"),
    "slice": (CLOS.replace("npu[6:8]", "npu[6:9]"), "there are 8 of npu"),
    "link": (CLOS.replace("- {name: nvlink}", "- {name: wire}"), "names the link 'nvlink'"),
    "class": (CLOS.replace("nvlink", "magic"), "neither its name nor its description"),
    "scheme": (CLOS.replace("many2many", "ring", 1), "scheme 'ring'"),
    "ends": (CLOS.replace("port[0:16]", "port[0:8]", 1), "one2one of 16 and 8 ends"),
    "no gpu": (
        CLOS.replace("choice: npu", "choice: cpu"),
        "0 kinds of instances with accelerators",
    ),
    "unit": (
        CLOS.replace("gigabits_per_second", "gigatransfers_per_second"),
        "is not in bit/s or B/s",
    ),
    "fabric": (
        CLOS.replace(
            'instance: "leaf[1]", component: "port[16:18]"',
            'instance: "leaf[0]", component: "port[18:20]"',
        ),
        "neither one switch nor leaves",
    ),
    "technology": (
        CLOS.replace(
            "- {ep1: {component: npu}, ep2: {component: nvlsw}, scheme: many2many, link: nvlink}",
            "",
        ),
        "joined by pcie, and those of dgx-a100 by nvlink",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(tmp_path, name):
    text, words = BAD[name]
    assert text != CLOS
    with pytest.raises(ClusterError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_twice_and_a_field_that_is_missing_are_refused(tmp_path):
    table = clos()
    table["instances"].append(dict(table["instances"][0]))
    with pytest.raises(ClusterError, match="two entries of one list are called"):
        read(tmp_path, table)
    table = clos()
    del table["instances"][0]["name"]
    with pytest.raises(ClusterError, match=r"clos\.yaml: .*field 'name' is missing"):
        read(tmp_path, table)
