"""How a cluster's figures are known, and which errors that stands for."""

from math import expm1, log, nan

import pytest

from experiments.priors.errors import HELD_OUT, read_errors
from experiments.priors.network import (
    CallResidual,
    held_out_errors,
    measured_by,
    prior,
    prior_of,
    say_far_sites,
    say_prior,
    tiers_of,
    with_parts,
)
from experiments.questions.collective import collective
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import one_call
from helpers.refusals import refused
from simulator.builder import WorkloadBuilder
from simulator.calls import UNKNOWN, CallRow
from simulator.support.errors import ClusterError
from simulator.workload import What
from topologies import catalog, load_cluster, parse_cluster
from topologies.cluster.catalog import cluster_text
from topologies.cluster.changed import changed, with_topology
from topologies.cluster.fabrics import CallErrors, HowKnown, TierErrors

TEXT = """
name: pair
accelerator: {name: chip}
ranks_per_node: 2
nodes: 2
scale_up: {topology: switch, size: 2, bandwidth: 100 GB/s, latency: 2 us}
scale_out: {topology: switch, nics_per_node: 1, bandwidth: 10 GB/s, latency: 5 us}
"""
BOTH = ("scale_up", "scale_out")
ERRORS = "{small: {median: 0.1, p90: 0.2}, large: {median: 0.05, p90: 0.1}}"


def known(text: str) -> HowKnown:
    return parse_cluster(f"{TEXT}known: {text}", source="pair").known


def test_a_file_that_says_nothing_is_a_data_sheet() -> None:
    told = prior(parse_cluster(TEXT, source="pair"), BOTH, ["all_reduce"])
    assert {one["known"] for one in told} == {"data sheet"}
    assert [one["sizes"] for one in told] == ["small", "large"] * 2


def test_what_is_known_says_which_errors_it_has() -> None:
    cluster = parse_cluster(f"{TEXT}known: {{scale_up: fitted}}", source="pair")
    small, large = prior(cluster, ["scale_up"], ["all_reduce"])
    for one in (small, large):
        errors = read_errors(HELD_OUT)["fitted", "scale_up", one["sizes"]]
        assert (one["median_pct"], one["p90_pct"]) == (errors.median_pct, errors.p90_pct)
        assert one["machines"] == list(errors.machines)
    (line,) = say_prior([small, large])
    assert line.startswith("scale-up: fitted to machines of this kind, median error")


@pytest.mark.parametrize(
    ("tier", "known", "count"),
    [("scale_out", "data sheet", 1), ("scale_out", "measured", 0), ("scale_up", "data sheet", 0)],
)
def test_far_sites_are_said_of_calls_between_nodes_that_were_not_measured(tier, known, count):
    (first, *_) = prior(parse_cluster(TEXT, source="pair"), [tier], ["all_reduce"])
    assert len(list(say_far_sites([first | {"known": known}]))) == count


def test_packets_on_full_links_widen_what_is_open_of_large_calls() -> None:
    """Between 1 and 1.17 times as long, all alike likely; not where measured errors have it."""
    cluster = parse_cluster(TEXT, source="pair")
    usual, routed = (
        prior(cluster, BOTH, ["all_reduce"], factors) for factors in ({}, {"scale_out": 1.17})
    )
    changed = [(row["tier"], row["sizes"]) for row in routed if row["packet_factor"] != 1]
    assert changed == [("scale_out", "large")]
    wider = routed[-1]["shared"] ** 2 - usual[-1]["shared"] ** 2
    assert wider == pytest.approx(log(1.17) ** 2 / 3)
    assert "packet collisions: up to 1.17 times as long" in list(say_prior(routed))[1]
    fitted = parse_cluster(f"{TEXT}known: {{scale_out: fitted}}", source="pair")
    rows = prior(fitted, BOTH, ["all_reduce"], {"scale_out": 1.17})
    assert rows == prior(fitted, BOTH, ["all_reduce"])


@pytest.mark.parametrize(
    ("nodes", "factor"), [(4, 1.0), (64, 1.109)], ids=["one router", "several routers"]
)
def test_packets_lose_nothing_where_all_share_a_switch(nodes: int, factor: float) -> None:
    workload = one_call("all_reduce", 4 * nodes, 1e6)
    priors = prior_of(Scenario(workload, load_cluster("perlmutter"), nodes=nodes))
    assert priors[-1]["packet_factor"] == pytest.approx(factor, abs=5e-4)


def test_a_measured_tier_has_its_own_errors_and_other_kinds_those_of_before() -> None:
    own = ERRORS.replace("{small", "{kinds: [all_reduce], others: fitted, small", 1)
    cluster = parse_cluster(
        f"{TEXT}known: {{scale_up: measured, errors: {{scale_up: {own}}}}}", source="pair"
    )
    rows = prior(cluster, ["scale_up"], ["all_reduce", "all_to_all"])
    assert [(one["known"], one["kinds"]) for one in rows[::2]] == [
        ("measured", ["all_reduce"]),
        ("fitted", ["all_to_all"]),
    ]
    assert [one["p90_pct"] for one in rows[:2]] == [20, 10]
    # Half of a normal distribution lies within 0.6745 of its standard deviations.
    assert rows[0]["shared"] == pytest.approx(log(1.1) / 0.6745)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{scale_up: fited}", "known.scale_up: 'fited'"),
        ("{scale_up: measured}", "errors.scale_up: missing"),
        (f"{{errors: {{scale_up: {ERRORS}}}}}", "only a tier that is measured has its own errors"),
        (
            "{scale_up: measured, errors: {scale_up: {small: {median: 0.3, p90: 0.2},"
            " large: {median: 0.1, p90: 0.2}}}}",
            "p90 0.2 is less than the median 0.3",
        ),
        (f"{{scale_up: measured, errors: {{nic: {ERRORS}}}}}", "known.errors.nic"),
        ("{pcie: fitted}", "known.pcie: no such field"),
        ("fitted", "known: 'fitted': write a table of fields"),
    ],
)
def test_what_is_not_said_so_is_refused(text: str, said: str) -> None:
    refused(lambda: known(text), said, error=ClusterError)


def test_every_kind_of_knowledge_has_errors_of_machines() -> None:
    for how in ("fitted", "same generation", "data sheet"):
        for tier in BOTH:
            for sizes in ("small", "large"):
                errors = held_out_errors(how, tier, sizes)
                assert 0 < errors.median_pct <= errors.p90_pct
                assert errors.shared > 0
                assert errors.machines


def test_the_catalogue_says_how_each_tier_is_known() -> None:
    for name in catalog():
        cluster = load_cluster(name)
        assert "measured" not in (cluster.known.scale_up, cluster.known.scale_out)
    assert load_cluster("dgx-a100").known.scale_up == "fitted"
    assert load_cluster("hgx-b200").known.scale_up == "same generation"
    assert load_cluster("l40s-pcie-8").known.scale_up == "path class"


def test_a_change_of_a_number_keeps_what_is_known_another_topology_does_not() -> None:
    cluster = load_cluster("dgx-a100")
    assert changed(cluster, "scale_up.bandwidth", 2).known == cluster.known
    made = with_topology(cluster, "ring").known
    assert (made.scale_up, made.scale_out) == ("data sheet", cluster.known.scale_out)
    one = with_topology(measured(), "ring").known
    assert (one.scale_up, dict(one.errors)) == ("data sheet", {})


def measured():  # type: ignore[no-untyped-def]
    return parse_cluster(
        f"{TEXT}known: {{scale_up: measured, errors: {{scale_up: {ERRORS}}}}}", source="pair"
    )


def test_what_was_measured_is_written_and_read_again() -> None:
    cluster = measured()
    assert parse_cluster(cluster_text(cluster), source="again").known == cluster.known


def test_tiers_are_those_that_groups_pass() -> None:
    cluster = load_cluster("dgx-a100")
    assert tiers_of(Scenario(one_call("all_reduce", 8, 1.0), cluster)) == ("scale_up",)
    assert tiers_of(Scenario(one_call("all_reduce", 16, 1.0), cluster)) == BOTH
    assert tiers_of(Scenario(one_call("all_reduce", 2, 1.0), cluster, nodes=2)) == ("scale_out",)
    assert prior_of(Scenario(one_call("all_reduce", 1, 1.0), cluster)) == []


@pytest.mark.parametrize(("sizes", "size"), [("small", 8.0), ("large", 2.0**32)])
def test_parts_longer_make_such_calls_longer(sizes: str, size: float) -> None:
    cluster = load_cluster("dgx-a100")
    one = next(one for one in prior(cluster, ["scale_up"], ["all_reduce"]) if one["sizes"] == sizes)
    plain, longer = (
        Scenario(one_call("all_reduce", 8, size), each).run().makespan
        for each in (cluster, with_parts(cluster, one, 1.5))
    )
    assert longer / plain == pytest.approx(1.5, rel=0.01)


def told(tier: str, sizes: str, *logs: float, kind: str = "all_reduce") -> list[CallResidual]:
    return [CallResidual(tier, kind, sizes, log) for log in logs]


def test_measured_calls_give_their_errors_and_leave_the_rest_as_it_was() -> None:
    before = HowKnown(scale_up="fitted", scale_out="same generation")
    calls = told("scale_up", "small", 0.1, -0.2, 0.3, -0.4, 0.5) + told("scale_up", "large", 0.1)
    found = measured_by(before, calls)
    assert (found.scale_up, found.scale_out) == ("measured", "same generation")
    errors = found.errors["scale_up"]
    assert errors.small.median == pytest.approx(expm1(0.3), abs=1e-4)
    fitted = read_errors(HELD_OUT)["fitted", "scale_up", "large"]  # one call tells of no others
    large = round(fitted.median_pct / 100, 4), round(fitted.p90_pct / 100, 4)
    assert errors.large == CallErrors(median=large[0], p90=large[1])
    assert (errors.kinds, errors.others) == (("all_reduce",), "fitted")
    again = measured_by(found, told("scale_up", "large", 0.0, 0.0, 0.0, kind="all_to_all"))
    assert again.errors["scale_up"].others == "fitted"
    assert measured_by(before, []) == before


def test_errors_of_a_tier_are_a_table() -> None:
    with pytest.raises(ValueError, match="kinds are"):
        TierErrors.model_validate(
            {
                "small": {"median": 0.1, "p90": 0.2},
                "large": {"median": 0.1, "p90": 0.2},
                "kinds": ["allreduce"],
            }
        )


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_table_is_what_the_measurements_say() -> None:
    from benchmarks.held_out import TABLE, held_out, rows

    if not TABLE.exists():
        pytest.skip("../shared/reference is not here")
    assert {errors.key: errors for errors in held_out(rows(TABLE))} == read_errors(HELD_OUT)


def test_calls_of_unknown_kind_have_no_prior() -> None:
    cluster = load_cluster("dgx-a100")
    unknown = one_call(UNKNOWN, 8, nan)
    assert prior_of(Scenario(unknown, cluster)) == []


def test_calls_of_unknown_kind_leave_the_prior_of_others() -> None:
    cluster = load_cluster("dgx-a100")
    builder = WorkloadBuilder(job_ranks=8)
    group = builder.group(tuple(range(8)))
    for kind, size in (("all_reduce", 1.0), (UNKNOWN, nan)):
        call = builder.call(CallRow(kind, group, 0, size))
        for rank in range(8):
            builder.op(What.COLLECTIVE, rank=rank, lane=kind, name=kind, duration=0.0, call=call)
    known = prior_of(Scenario(one_call("all_reduce", 8, 1.0), cluster))
    assert prior_of(Scenario(builder.build(), cluster)) == known


@pytest.mark.parametrize(("ranks", "held_out"), [(8, "scale_up"), (72, "scale_out")])
def test_small_calls_of_domains_wider_than_any_timed_are_as_uncertain_as_between_nodes(
    ranks, held_out
):
    report = collective("all_reduce", "gb200-nvl72", [1024.0, 2.0**30], ranks=ranks)
    small, large = report.network_prior
    assert small["p90_pct"] == held_out_errors("same generation", held_out, "small").p90_pct
    assert large["p90_pct"] == held_out_errors("same generation", "scale_up", "large").p90_pct


def test_launches_in_turn_are_as_uncertain_as_on_the_hosts_that_were_timed():
    """Eight GPUs of one process took 31 to 65 us of small calls on six hosts, modelled as 39."""
    in_turn = ["library.ranks_per_process = 8"]
    small, _ = collective("all_reduce", "hgx-h100", [8.0], ranks=8, what_ifs=in_turn).network_prior
    assert small["p90_pct"] == 67
    for took in (31, 65):
        assert abs(took / 39.2 - 1) < 0.67
