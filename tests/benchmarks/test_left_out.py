"""Errors with machines left out: whose constants count, and the published logs that ship."""

import pytest

from benchmarks import left_out
from collectives.libraries import nccl_constants
from topologies import load_cluster

FITS = {
    "dgx-a100": {"base": 9e-6, "step": 2e-7},
    "hgx-h100": {"base": 5e-6, "step": 3e-7},
    "hgx-h200": {"base": 4e-6, "step": 1e-7},
    "hgx-b300": {"base": 7e-6, "step": 7e-7},
    "alps-gh200": {"nic": 1.0, "message": 20e-6},
    "polaris": {"nic": 0.5, "message": 22e-6},
    "hgx-h100-ndr": {"nic": 0.9, "message": 3e-6},
}


def test_a_machine_never_counts_for_itself():
    same = left_out.pooled(FITS, "hgx-h100", left_out.SAME)
    assert same["base"] == FITS["hgx-h200"]["base"]
    sheet = left_out.pooled(FITS, "hgx-h100", left_out.SHEET)
    assert sheet["base"] == pytest.approx(8e-6)  # A100 and B300


def test_nics_count_by_their_own_family():
    same = left_out.pooled(FITS, "alps-gh200", left_out.SAME)
    assert (same["nic"], same["message"]) == (0.5, 22e-6)
    assert same["base"] == pytest.approx(4.5e-6)  # both Hoppers
    assert left_out.pooled(FITS, "alps-gh200", left_out.SHEET)["nic"] == 0.9


def test_without_a_relative_there_is_no_same_generation():
    assert not left_out.has_relative("hgx-b300")
    assert left_out.has_relative("hgx-h200")
    assert not left_out.has_relative("hgx-h100-ndr")


def test_constants_hold_while_they_are_given_and_no_longer():
    given = dict(left_out.START) | {"base": 1e-6, "wire": 0.5}
    before = nccl_constants.tuning("hopper")
    with left_out.constants("hgx-h100", given) as cluster:
        assert nccl_constants.tuning("hopper").base == 1e-6
        assert cluster.scale_up.efficiency == pytest.approx(0.5 * 0.824)
    assert nccl_constants.tuning("hopper") == before
    assert load_cluster("hgx-h100").scale_up.efficiency == 0.824


def test_constants_survive_their_file(tmp_path):
    path = tmp_path / "constants.csv"
    left_out.write_constants(FITS, path)
    assert left_out.read_constants(path) == FITS


def test_the_shipped_constants_are_of_measured_machines():
    fits = left_out.read_constants()
    assert fits.keys() == left_out.MACHINES.keys()
    for system, given in fits.items():
        assert set(given) == set(left_out.told(system))
