"""Calibration with a part of a machine's rows: what the rest gains by it, and that none loses."""

import numpy as np
import pandas as pd
import pytest

import twofold as tf
from benchmarks import logs
from helpers.places import SHARED
from topologies import load_cluster

REAL = SHARED / "reference" / "measured_collectives.csv"
real = pytest.mark.skipif(not REAL.exists(), reason="the measurements do not ship")


def rows_of(system):
    return logs.rows_of(pd.read_csv(REAL), system)


def written(path, calls):
    rows = [
        f"{call.kind},{call.nodes},{call.ranks},{call.size},{1e6 * call.time!r}" for call in calls
    ]
    path.write_text("\n".join(["kind,nodes,ranks,size_bytes,time_us", *rows]) + "\n")
    return path


_LIKE_OTHERS = ("hgx-h200", "hgx-b300", "alps-gh200", "polaris")
"""Switches as of H100, nodes as of A100."""


@real
@pytest.mark.parametrize(
    "system",
    [
        *("dgx-a100", "rtx-pro-6000-pcie-8"),
        pytest.param("hgx-h100", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in _LIKE_OTHERS),
    ],
)
def test_calibrated_no_machine_is_worse_than_its_catalogue_entry(system):
    """A quarter of a machine's rows, drawn eight times; of every machine some 80 of the rows.

    In the median of the draws the rest is no worse met than by the catalogue, and in no draw by
    half more, but in one of Polaris, whose equal calls differ by 6 % in the median and by half in a
    tenth of the cases. ``python -m benchmarks.logs`` has all rows.
    """
    rows = rows_of(system)
    base = logs.nearest(system)
    calls = logs.modelled_rows(rows[:: max(1, len(rows) // 80)], base)
    before, after = logs.medians(calls, base, logs.QUARTER, seeds=8)[:, :2].T
    assert np.median(after - before) <= 1e-9
    assert np.sum(after >= 1.5 * before) <= (system == "polaris")


@real
def test_one_side_of_a_size_does_not_spoil_the_other():
    """Calls up to 1 MiB of Polaris, and from there on, predict the others as the catalogue does."""
    base = logs.nearest("polaris")
    calls = logs.modelled_rows(rows_of("polaris")[::3], base)
    for name, known, rest in logs.parts(calls):
        if name in ("up to 1 MiB", "from 1 MiB"):
            before, after = map(np.median, logs.errors(known, rest, base))
            assert after < 1.2 * before + 0.5


@real
def test_a_calibrated_cluster_says_what_its_fit_says(tmp_path):
    """HGX B300 beside a generation before it, which misses it by more than a third."""
    base = load_cluster("hgx-h100")
    calls = logs.modelled_rows(rows_of("hgx-b300"), base)
    known, rest = logs.split(calls, logs.QUARTER, seed=0)
    before, by_fit = logs.errors(known, rest, base)
    files = [
        written(tmp_path / f"{name}.csv", [answer.call for answer in part])
        for name, part in (("known", known), ("rest", rest))
    ]
    cluster = tf.calibrate_logs(files[0], base).cluster
    report = tf.validate(cluster=cluster, collectives=[files[1]])
    by_cluster = np.abs([call.error_pct for call in report.calls])
    assert np.median(by_cluster) == pytest.approx(np.median(by_fit), abs=0.5)
    assert np.median(by_cluster) < np.median(before) / 2
