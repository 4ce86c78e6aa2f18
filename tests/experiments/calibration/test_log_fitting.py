"""Fits to logs: known multiples come back, kinds help each other, and what is not told stays."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from collectives.files.measured_calls import LINK, MeasuredCall
from collectives.machine import time_multiple
from experiments.calibration.log_fitting import fit_logged, logged, logged_cluster
from experiments.calibration.modelled_calls import check_one_machine, modelled
from experiments.priors.network import CallResidual, measured_by, spread_of
from simulator.support.errors import CalibrationError
from simulator.topology import SCALE_UP
from topologies import Cluster, load_cluster
from topologies.cluster.fabrics import HowKnown

SIZES = [2.0**power for power in range(10, 30, 2)]
LARGE = [2.0**power for power in range(24, 34)]
CLUSTER = load_cluster("dgx-a100")


def slower(software=1.5, bandwidth=0.8):
    """The cluster as it would be in truth: more software, less of the wire."""
    part = {"overhead": software, "bandwidth": {"scale_up": bandwidth}}
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    text = CLUSTER.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return Cluster.model_validate(text | {"calibration": dict.fromkeys(kinds, part)})


def calls(kind="all_reduce", ranks=8, nodes=1, sizes=SIZES):
    return [MeasuredCall(kind, ranks, nodes, size, 1.0, "here") for size in sizes]


def timed(asked, cluster=CLUSTER, scatter=0.0, seed=0):
    """Calls that take what a cluster makes of them, times a scatter."""
    rng = np.random.default_rng(seed)
    found, _ = modelled(asked, cluster)
    return [
        replace(one.call, time=one.time * float(np.exp(scatter * rng.standard_normal())))
        for one in found
    ]


def fitted(measured, cluster=CLUSTER):
    answered, _ = modelled(measured, cluster)
    return fit_logged(logged(answered))


def errors(measured, cluster):
    answered, _ = modelled(measured, cluster)
    return np.array([abs(one.time / one.call.time - 1) for one in answered])


def test_calls_as_modelled_change_nothing():
    found = fitted(timed(calls()))
    assert np.abs(found.multiples("all_reduce") - 1).max() < 1e-6
    assert np.abs(found.longer("all_reduce", 8, 1, np.array(SIZES)) - 1).max() < 1e-6
    assert np.abs(found.left_out).max() < 1e-6


def test_what_is_slower_in_truth_is_met_and_predicted():
    truth = slower()
    every_other = timed(calls(sizes=SIZES[::2]), truth)
    made = logged_cluster(CLUSTER, fitted(every_other), "a test")
    between = timed(calls(sizes=SIZES[1:-1:2]), truth)
    assert np.median(errors(between, CLUSTER)) > 0.15
    assert np.median(errors(between, made)) < 0.03
    assert errors(between, made).max() < 0.1


def test_one_kind_on_one_node_helps_all_others():
    """Where all kinds are off alike, one takes away a third at least of the others' error."""
    made = logged_cluster(CLUSTER, fitted(timed(calls(sizes=SIZES[::2]), slower())), "a test")
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        others = timed(calls(kind), slower())
        before, after = (np.median(errors(others, one)) for one in (CLUSTER, made))
        assert after < 2 / 3 * before


def test_a_wild_call_moves_little():
    truth = timed([*calls(), *calls("all_gather")], slower(), scatter=0.01)
    wild = [replace(truth[4], time=5 * truth[4].time), *truth[:4], *truth[5:]]
    made = logged_cluster(CLUSTER, fitted(wild), "a test")
    assert np.median(errors(truth, made)) < 0.03
    assert np.quantile(errors(truth, made), 0.8) < 0.1


def test_what_no_call_uses_stays_as_it_is():
    found = fitted(timed(calls(), slower()))
    assert not any(name.startswith("scale_out") for name in found.calls.names)
    made = logged_cluster(CLUSTER, found, "a test")
    far = calls(ranks=16, nodes=2)
    here, _ = modelled(far, CLUSTER)
    there, _ = modelled(far, made)
    for before, after in zip(here, there, strict=True):
        one, other = (
            parts.get("scale_out.bandwidth", 0.0) for parts in (before.parts, after.parts)
        )
        assert one == pytest.approx(other)


def test_small_calls_do_not_tell_the_bandwidth():
    found = fitted(timed(calls(sizes=[256.0, 512.0, 1024.0, 2048.0]), slower()))
    told = dict(zip(found.calls.names, found.informed[0], strict=True))
    assert told["software"]
    assert not told["scale_up.bandwidth"]
    at = found.calls.names.index("scale_up.bandwidth")
    assert found.multiples("all_reduce")[at] == 1.0


def test_deviations_die_out_beyond_the_sizes_of_a_log():
    """What a log from 512 KiB to 64 MiB shows holds for no other sizes for ever."""
    bump = [
        replace(call, time=call.time * (1.4 if call.size < 2**22 else 0.8))
        for call in timed(calls(sizes=[2.0**power for power in range(19, 27)]))
    ]
    made = logged_cluster(CLUSTER, fitted(bump), "a test")
    for kind in ("all_reduce", "all_gather"):
        curves = made.calibration[kind].by_size
        inside = [time_multiple(curves, 8, 1, 2.0**power) for power in range(19, 27)]
        assert max(inside) / min(inside) > (1.2 if kind == "all_reduce" else 1.0)
        for size in (1.0, 2.0**40):
            assert time_multiple(curves, 8, 1, size) == pytest.approx(1, abs=0.01)


def test_a_part_that_is_most_of_no_call_stays():
    """Calls of 64 MiB and more that are all slower tell the bandwidth, and nothing of latency."""
    large = timed(calls(sizes=LARGE[2:]), slower(software=4.0))
    fit = fitted(large)
    multiples = dict(zip(fit.calls.names, fit.multiples("all_reduce"), strict=True))
    assert multiples["software"] == multiples["scale_up.latency"] == 1
    assert multiples["scale_up.bandwidth"] > 1.1


def test_a_log_that_meets_calls_left_out_no_better_leaves_the_catalogue():
    for_and_back = [
        replace(call, time=call.time * np.exp(0.2 * (-1) ** number))
        for number, call in enumerate(timed(calls(sizes=[2.0**power for power in range(10, 30)])))
    ]
    fit = fitted(for_and_back)
    assert fit.share == 0
    made = logged_cluster(CLUSTER, fit, "a test")
    others = timed(calls("all_gather"))
    assert errors(others, made) == pytest.approx(0, abs=1e-3)
    assert np.abs(np.log1p(fit.left_out)) == pytest.approx(0.2)


def test_the_order_of_calls_changes_nothing():
    measured = timed([*calls(), *calls("all_to_all", 4)], slower(), scatter=0.03)
    one, other = fitted(measured), fitted(measured[::-1])
    assert other.theta == pytest.approx(one.theta, abs=1e-6)
    assert other.left_out[::-1] == pytest.approx(one.left_out, abs=1e-6)


def test_calls_left_out_are_as_far_off_as_a_fit_without_them():
    """Every third of them: each is a fit."""
    measured = timed([*calls(), *calls("all_gather", 4)], slower(), scatter=0.05)
    whole = fitted(measured)
    again = []
    for at, one in list(enumerate(measured))[::3]:
        made = logged_cluster(CLUSTER, fitted([*measured[:at], *measured[at + 1 :]]), "a test")
        again.append(float(errors([one], made)[0]))
    claimed = np.abs(whole.left_out)[::3]
    assert np.median(again) == pytest.approx(np.median(claimed), rel=0.35)


def test_equal_calls_count_by_their_median():
    measured = timed(calls(), slower())
    thrice = [
        replace(one, time=one.time * factor) for one in measured for factor in (0.97, 1.0, 1.4)
    ]
    found = logged(modelled(thrice, CLUSTER)[0])
    assert found.count.tolist() == [3] * len(measured)
    assert found.took.tolist() == pytest.approx([one.time for one in measured])


def test_a_link_s_bandwidth_is_that_of_all_kinds():
    out = CLUSTER.scale_out
    speed = 0.8 * out.bandwidth * out.efficiency
    links = [
        MeasuredCall(LINK, 2, 2, size, size / speed, "x, line 1", streamed=True)
        for size in (2.0**16, 2.0**20, 2.0**23)
    ]
    found = fitted(links)
    assert found.calls.names == ("scale_out.bandwidth",)
    assert found.multiples("all_reduce") == pytest.approx([1.25], rel=0.02)
    lacks_nics = CLUSTER.model_copy(update={"scale_out": None, "nodes": 1})
    with pytest.raises(CalibrationError, match="no NICs"):
        modelled(links, lacks_nics)


def test_a_nic_s_latency_is_left_out_where_a_library_has_its_own_beside_it():
    lone = MeasuredCall(LINK, 2, 2, 2.0, 1.5e-6, "x, line 1")
    found, notes = modelled([lone], CLUSTER)
    assert not found
    assert "proxy" in notes[0]


def test_too_few_calls_and_a_wrong_unit_are_refused():
    measured = timed(calls())
    with pytest.raises(CalibrationError, match="2 different calls"):
        fitted(measured[:2])
    in_ms = [replace(one, time=1000 * one.time) for one in measured]
    with pytest.raises(CalibrationError, match="unit"):
        fitted(in_ms)


def test_one_call_that_no_machine_makes_is_refused_and_so_are_calls_without_a_model():
    measured = timed(calls())
    with pytest.raises(CalibrationError, match=r"here: .* times as fast as on this cluster"):
        fitted([replace(measured[0], time=measured[0].time / 2000), *measured[1:]])
    told = [CallResidual(SCALE_UP, "all_reduce", "large", 9.0)] * 3
    with pytest.raises(CalibrationError, match="times off what a fitted model says"):
        measured_by(CLUSTER.known, told)


def test_ranks_that_do_not_fit_are_refused_with_their_place():
    from simulator.support.errors import ClusterError

    with pytest.raises(ClusterError, match="here"):
        modelled(calls(ranks=4096, nodes=512), CLUSTER)


def machine(scale=1.0, path="one.csv", kind="all_reduce", sizes=LARGE):
    asked = enumerate(calls(kind, sizes=sizes))
    made = timed([replace(one, location=f"{path}, line {at}") for at, one in asked])
    return [replace(one, time=scale * one.time) for one in made]


def checked(measured):
    check_one_machine(modelled(measured, CLUSTER)[0])


def test_rows_of_two_machines_are_told_by_their_zigzag():
    own, other = machine(), machine(1.6)
    mixed = [(own, other)[at % 2][at] for at in range(len(own))]
    with pytest.raises(CalibrationError, match=r"one.csv, line 0.*two machines"):
        checked(mixed)
    checked(own)
    checked(other)
    checked([replace(one, time=one.time * 1.3**at) for at, one in enumerate(own)])  # drifts


def test_files_of_two_machines_are_told_though_no_call_is_equal():
    with pytest.raises(CalibrationError, match=r"two.csv.*1.7. times.*one.csv.*two machines"):
        checked([*machine(sizes=LARGE[::2]), *machine(1.7, "two.csv", sizes=LARGE[1::2])])
    checked([*machine(sizes=LARGE[::2]), *machine(1.2, "two.csv", sizes=LARGE[1::2])])
    checked([*machine(), *machine(1.7, "two.csv", kind="all_gather")])  # models may be that far off


@pytest.mark.parametrize("known", ["fitted", "data sheet"])
def test_the_less_a_cluster_is_known_the_more_a_kind_says_of_others(known):
    """All-reduce alone takes twice the software; of all-gather's it is what is believed."""
    spread = partial(spread_of, HowKnown(scale_up=known))
    one_kind = timed(calls(sizes=[1024.0, 4096.0, 16384.0]), slower(2.0, 1.0))
    answered, _ = modelled(one_kind, CLUSTER)
    found = fit_logged(logged(answered, spread)).multiples("all_gather")[0]
    wide = fit_logged(logged(answered, lambda _: 1.0)).multiples("all_gather")[0]
    assert 1 <= found < wide
    assert (found < 1.3) == (known == "fitted")
    assert spread("software") <= spread_of(HowKnown(), "software")
