"""SM coverage: how much of the accelerator has work, as far as the kernels' grids tell."""

import gzip
import json
import math

import pytest

from helpers.places import SAMPLES
from traces.load import load

SAMPLE = SAMPLES / "gpu-dp2-tp4" / "rank0.json.gz"


def coverage_of(folder, *told):
    """SM coverage where kernel ``k`` tells ``told[k % len(told)]`` blocks per multiprocessor."""
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    for number, kernel in enumerate(kernels):
        blocks = told[number % len(told)]
        if blocks is not None:
            kernel["args"]["blocks per SM"] = blocks
    path = folder / "rank0.json"
    path.write_text(json.dumps(trace))
    return load(path).counters.sm_coverage


@pytest.mark.parametrize(
    ("told", "mean"), [((0.25,), 0.25), ((3.0,), 1.0), ((40,), 1.0), ((0.5, None), 0.5)]
)
def test_it_is_the_part_of_multiprocessors_with_a_block(tmp_path, told, mean):
    assert coverage_of(tmp_path, *told) == pytest.approx(mean)


def test_it_lies_between_what_the_kernels_tell(tmp_path):
    assert 0.25 < coverage_of(tmp_path, 0.25, 2.0) < 1


@pytest.mark.parametrize("told", [None, "inf", -1.0])
def test_what_is_not_told_is_not_known(tmp_path, told):
    assert math.isnan(coverage_of(tmp_path, told))
