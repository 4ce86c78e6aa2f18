"""Other spellings of a name are understood, and what is none is told which is near."""

import pytest

from collectives.libraries.planners import parse_rule as parse_rule
from experiments.questions.collective import collective
from experiments.scenario.language import parse_change as parse_change
from experiments.scenario.resources import check_resource
from simulator.calls import KINDS, kind_named
from simulator.support.errors import QuantityError, TwofoldError, WhatIfError
from simulator.support.names import fields_at, nearest, same_name
from simulator.support.quantities import parse_quantity
from topologies import Cluster, catalog, load_cluster
from topologies.cluster.fabrics import FABRICS, Graph
from topologies.cluster.node import NodeKind, NodeNics
from topologies.cluster.wiring import Cable
from topologies.spec import parse_topology
from traces.generate.model import load_model, model_names


@pytest.mark.parametrize(
    "known", [KINDS, catalog(), model_names()], ids=["kinds", "clusters", "models"]
)
def test_a_name_is_itself_however_it_is_written(known):
    for name in known:
        for text in (name, name.upper(), name.replace("_", "-"), name.replace("-", "_")):
            assert same_name(text, known) == name


def test_what_may_be_several_names_is_none():
    assert same_name("ab", ["a-b", "a_b"]) is None
    assert same_name("", ["a"]) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("all-reduce", "all_reduce"),
        ("allreduce", "all_reduce"),
        ("ALL_REDUCE", "all_reduce"),
        ("AllGather", "all_gather"),
        ("alltoall", "all_to_all"),
        ("all2all", "all_to_all"),
        ("reducescatter", "reduce_scatter"),
        ("sendrecv", "send_receive"),
        ("send_recv", "send_receive"),
        ("reduce", "reduce"),
        ("allreduc", None),
        ("", None),
    ],
)
def test_kinds_as_libraries_spell_them(text, kind):
    assert kind_named(text) == kind


def test_a_rule_and_a_change_take_any_spelling():
    assert parse_rule("all-reduce=Halving-Doubling") == parse_rule("all_reduce=halving_doubling")
    for text in ("allreduce@tp bytes x0.5", "scaleout.bandwidth x2", "scale-up.latency = 1 us"):
        assert parse_change(text).parts


def test_resources():
    assert check_resource("ScaleUp.Bandwidth") == "scale_up.bandwidth"
    with pytest.raises(WhatIfError, match=r"did you mean scale_up\.bandwidth, scale_up\.latency"):
        check_resource("nvlink")
    with pytest.raises(WhatIfError, match=r"did you mean scale_out\.nics_per_node\?"):
        check_resource("NICs")
    with pytest.raises(WhatIfError, match=r"did you mean 'scale_out\.bandwidth'"):
        parse_change("scaleout.bandwith x2")


def test_clusters_models_and_topologies():
    assert load_cluster("dgxa100") == load_cluster("dgx-a100")
    assert load_model("Llama_3.1_8B") == load_model("llama-3.1-8b")
    cable = {"bandwidth": 1e9, "latency": 1e-6}
    assert parse_topology("FatTree:4", **cable).name == parse_topology("fat_tree:4", **cable).name
    with pytest.raises(TwofoldError, match=r"did you mean .*hgx-h100"):
        load_cluster("h100")


def test_a_file_wins_over_another_spelling_of_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dgxa100").write_text("name: [")
    with pytest.raises(TwofoldError, match="dgxa100: line 2, column 1: not valid YAML"):
        load_cluster("dgxa100")


def test_a_report_says_the_name_as_it_is_defined():
    (point,) = collective("AllReduce", "DGX_A100", [2.0**20], ranks=8, algorithm="Ring").points
    assert (point.kind, point.algorithm) == ("all_reduce", "ring")
    with pytest.raises(WhatIfError, match="did you mean all_reduce"):
        collective("alreduce", "dgx-a100", [1.0], ranks=8)


def test_the_nearest_come_from_parts_or_from_misprints():
    assert nearest("analytical", ["flow", "analytic"]) == ["analytic"]
    assert nearest("x", ["flow"]) == []
    assert nearest("simpi", ["simpl", "simpy"]) in (["simpl"], ["simpy"]), "of two as near, one"
    assert len(nearest("a", catalog())) <= 3


@pytest.mark.parametrize(
    ("text", "base", "meant"),
    [
        ("400 Gbps", "B/s", "'400 Gbit/s' or '400 GB/s'"),
        ("400Gb/s", "B/s", "'400 Gbit/s' or '400 GB/s'"),
        ("50 GBps", "B/s", "'50 GB/s'"),
        ("400 Gbits/sec", "B/s", "'400 Gbit/s'"),
        ("64 mib", "B", "'64 MiB'"),
        ("2 KBytes", "B", "'2 kB'"),
        ("25 usec", "s", "'25 us'"),
        ("2 microseconds", "s", "'2 us'"),
        ("312 TFLOPS", "FLOP/s", "'312 TFLOP/s'"),
    ],
)
def test_a_unit_that_is_none_is_told_which_was_meant(text, base, meant):
    with pytest.raises(QuantityError) as error:
        parse_quantity(text, base)
    assert f"did you mean {meant}?" in str(error.value)


@pytest.mark.parametrize(("text", "value"), [("25us", 25e-6), ("25 μs", 25e-6), ("25µs", 25e-6)])
def test_units_that_need_no_blank(text, value):
    assert parse_quantity(text, "s") == pytest.approx(value)


@pytest.mark.parametrize("tag", FABRICS)
def test_the_fields_of_a_table_are_those_of_its_type_behind_tags_keys_and_indices(tag):
    fabric, kind = FABRICS[tag], ("node_kinds", "a100")
    for location, table in (
        (("x",), Cluster),
        (("scale_out", tag, "x"), fabric),
        (("scale_out", "graph", "graph", "x"), Graph),
        (("scale_up", "graph", "x"), Graph),
        ((*kind, "x"), NodeKind),
        ((*kind, "scale_out", "x"), NodeNics),
        (("wiring", "cables", 3, "x"), Cable),
    ):
        assert fields_at(Cluster, location) == list(table.model_fields)
