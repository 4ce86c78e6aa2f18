"""Measured calls beside the model: what explains a difference has to be what made it."""

import json

import pytest
from jsonschema import Draft202012Validator

from collectives.files.nccl_tests import _version
from experiments.output.figure import draw
from experiments.questions.collective import collective
from experiments.questions.collective_compare import collective_compare
from experiments.schemas.schema import schema_of
from simulator.support.errors import TraceError, WhatIfError
from topologies import load_cluster

SIZES = [2.0**power for power in range(16, 29)]
H100 = load_cluster("hgx-h100")


def table(path, rows):
    lines = ["kind,nodes,ranks,size_bytes,time_us"]
    path.write_text("\n".join([*lines, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def timed(path, *asked, factor=1.0, **options):
    """Write what the model says of one cluster as if it had been measured."""
    points = collective(*asked, sizes=SIZES, **options).points
    rows = [
        (point.kind, options.get("nodes", 1), point.ranks, point.size_bytes, times * point.time_s)
        for point, times in zip(points, [1e6 * factor] * len(points), strict=True)
    ]
    return table(path, rows)


def test_what_is_measured_as_modelled_needs_no_explanation(tmp_path):
    log = timed(tmp_path / "log.csv", "all_reduce", H100, ranks=8, factor=1.04)
    report = collective_compare([log], H100)
    assert [call.error_pct for call in report.calls] == pytest.approx([100 / 1.04 - 100] * 13)
    assert report.explanations == ()
    assert report.error_summary.bias_pct == pytest.approx(100 / 1.04 - 100)
    point = collective("all_reduce", H100, [SIZES[-1]], ranks=8).points[0]
    assert report.calls[-1].modelled_busbw_GBps == pytest.approx(point.busbw_GBps)
    assert "No call is off by more than 10 %" in report.document().cause


def test_an_algorithm_that_was_forced_is_recognised(tmp_path):
    log = timed(tmp_path / "log.csv", "all_reduce", H100, ranks=8, algorithm="ring")
    off = [call for call in collective_compare([log], H100).calls if abs(call.error_pct) > 10]
    assert off
    assert {call.explanation.partition(" ")[0] for call in off} == {"ring"}
    assert max(abs(call.explained_error_pct) for call in off) < 1e-6


@pytest.mark.parametrize(
    ("kind", "name", "setting", "ranks", "nodes"),
    [
        ("reduce_scatter", "hgx-b200", "library.version = 2.29", 8, 1),
        ("all_reduce", "hgx-h100", "transport sockets", 16, 2),
        ("all_gather", "hgx-h100", "p2p LOC", 8, 1),
    ],
)
def test_a_setting_that_was_changed_is_recognised(tmp_path, kind, name, setting, ranks, nodes):
    where = load_cluster(name)
    log = timed(tmp_path / "log.csv", kind, where, ranks=ranks, nodes=nodes, what_ifs=[setting])
    report = collective_compare([log], where)
    with_it = collective_compare([log], where, what_ifs=[setting])
    assert max(abs(call.error_pct) for call in with_it.calls) < 1e-6
    off = [call for call in report.calls if abs(call.error_pct) > 10]
    if setting.startswith("library.version"):  # only where it changes its mind, one size apart
        assert off
    else:
        assert {call.explanation for call in off} == {setting}


def test_noise_has_no_explanation(tmp_path):
    """Every second row 40 % longer: no choice is taken twice, no setting holds on the others."""
    points = collective("all_gather", H100, SIZES, ranks=8).points
    rows = [
        ("all_gather", 1, 8, point.size_bytes, 1e6 * point.time_s * (1.4 if at % 2 else 1.0))
        for at, point in enumerate(points)
    ]
    report = collective_compare([table(tmp_path / "log.csv", rows)], H100)
    assert sum(abs(call.error_pct) > 10 for call in report.calls) == 6
    assert report.explanations == ()


def test_the_part_that_is_off_is_named(tmp_path):
    """A cluster whose links have 0.8 of the bandwidth: bytes take 1.25 times as long."""
    slow = ["scale_up.bandwidth x0.8"]
    log = timed(tmp_path / "log.csv", "all_gather", "hgx-h100", ranks=8, what_ifs=slow)
    largest = collective_compare([log], H100).calls[-1]
    assert largest.limited_by == "scale_up.bandwidth"
    assert largest.part_factor == pytest.approx(1.25, rel=0.02)


def test_calls_are_selected_and_missing_ones_refused(tmp_path):
    rows = [("all_reduce", 1, 8, 2**20, 40), ("all_reduce", 2, 16, 2**20, 60)]
    log = table(tmp_path / "log.csv", [*rows, ("all_gather", 1, 8, 2**20, 30)])
    assert len(collective_compare([log], H100).calls) == 3
    assert len(collective_compare([log], H100, kind="all_reduce_perf", ranks=16).calls) == 1
    assert len(collective_compare([log], H100, nodes=1).calls) == 2
    with pytest.raises(TraceError, match=r"nothing is all_reduce of 4 ranks; there are: all_gath"):
        collective_compare([log], H100, kind="all_reduce", ranks=4)
    with pytest.raises(WhatIfError, match="kind"):
        collective_compare([log], H100, kind="all_produce")
    log.write_text("kind,size_bytes,time_us\nall_reduce,1024,40\n")
    assert len(collective_compare([log], H100, ranks=8).calls) == 1


def test_the_answer_is_as_its_schema_says_and_is_drawn(tmp_path):
    log = timed(tmp_path / "log.csv", "all_reduce", H100, ranks=8, algorithm="ring")
    report = collective_compare([log], H100)
    answer = json.loads(report.to_json())
    Draft202012Validator(schema_of("collective_compare")).validate(answer)
    assert "explained by" in report.to_html()
    draw(report.document(), tmp_path / "beside.svg")
    assert report.to_csv().count("\n") > len(SIZES)


def test_the_version_that_a_log_names_is_that_of_the_library():
    assert _version("# nccl-tests version 2.17.1 nccl-headers=22803 nccl-library=22803") == "2.28.3"
    assert _version("RCCL version : 2.22.3-HEAD:9e4a2b3") == "2.22.3"
    assert _version("# Using devices") == ""
