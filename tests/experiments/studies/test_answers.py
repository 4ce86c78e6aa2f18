"""Answers of points: to the last bit the same, whatever is asked with them."""

import itertools
import math
import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.change import Multiplied
from experiments.studies.answers import Answerer
from experiments.studies.declaration import declare
from experiments.studies.placed import Chunk
from experiments.studies.results import values_at
from experiments.studies.sites import Sites
from experiments.studies.study import processes, read_workloads
from helpers.places import SHARED
from helpers.studies import TRACE, links
from simulator.support.errors import StudyError

SPACE = {
    "host": [1, 1.7],
    "compute": [1, 3],
    "scale_up.bandwidth": {"factors": [1, 0.3, 2.9]},
    "scale_up.latency": ["0.6 us", "1.1 us"],
}


def chunked(points, size):
    """Chunks of so many points; all are of one site."""
    few = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [
        Chunk(number, one[0].site, tuple(point.numbers for point in one), "analytic")
        for number, one in enumerate(few)
    ]


MEGATRON = SHARED / "traces" / "megatron-tp8-a100"
"""Where sums of its steps, added up in another order, differ in their last bit."""
needs_megatron = pytest.mark.skipif(not MEGATRON.is_dir(), reason="no ../shared here")


@pytest.fixture(scope="module", params=[TRACE, pytest.param(MEGATRON, marks=needs_megatron)])
def job(request):
    """A workload, and its points in place."""
    workloads = [{"trace": str(request.param)}]
    study = declare(links(workloads=workloads, space=SPACE, objectives={"step_s": "min"}))
    bases, _ = read_workloads(study)
    sites = Sites(study, bases)
    every = itertools.product(*(range(len(one.levels)) for one in study.dimensions))
    return bases, [sites.placed(0, values_at(study.dimensions, at)) for at in every]


@pytest.fixture(scope="module")
def alone(job):
    bases, points = job
    answerer = Answerer(bases)
    return [answerer.answers(chunk)[0] for chunk in chunked(points, 1)]


@given(size=st.integers(2, 24), order=st.permutations(range(24)))
def test_an_answer_does_not_depend_on_what_is_asked_with_it(job, alone, size, order):
    bases, points = job
    answerer = Answerer(bases)
    shuffled = [points[at] for at in order]
    found = [one for chunk in chunked(shuffled, size) for one in answerer.answers(chunk)]
    assert found == [alone[at] for at in order]


def test_an_answer_is_that_of_another_process(job, alone):
    bases, points = job
    assert Answerer(pickle.loads(pickle.dumps(bases))).answers(chunked(points, 24)[0]) == alone
    with processes(bases, 2) as run:
        found = dict(run(chunked(points, 5)))
    assert [one for number in sorted(found) for one in found[number]] == alone


def test_keys_tell_points_apart_that_differ_and_no_others(job):
    bases, points = job
    keys = [one.key for one in points]
    assert len(set(keys)) == len(points)
    again = declare(links(space=dict(reversed(SPACE.items())), objectives={"step_s": "min"}))
    sites = Sites(again, bases)
    every = itertools.product(*(range(len(one.levels)) for one in again.dimensions))
    assert {sites.placed(0, values_at(again.dimensions, at)).key for at in every} == set(keys)


def test_one_point_that_cannot_be_does_not_take_others_with_it(job, alone):
    bases, points = job
    (chunk,) = chunked(points, 24)
    unknown = (Multiplied("fibre.bandwidth", times=2.0),)
    wrong = Chunk(0, chunk.site, (*chunk.points, unknown), "analytic")
    *found, last = Answerer(bases).answers(wrong)
    assert found == alone
    assert math.isnan(last.step)
    assert "fibre.bandwidth" in last.refused


def test_a_worker_that_is_killed_is_told_in_one_line(job):
    bases, points = job

    def killed_at_work():
        with processes(bases, 1) as run:
            stream = run(chunked(points, 1))
            next(stream)
            for child in multiprocessing.active_children():
                child.kill()
            list(stream)

    with pytest.raises(StudyError, match="a worker was killed"):
        killed_at_work()


def test_busy_is_what_kernels_take_at_most_the_step(alone):
    by_speed = np.array([one.busy for one in alone]).reshape(2, 2, 3, 2)
    assert by_speed[:, 0] == pytest.approx(3 * by_speed[:, 1], rel=0.2)
    assert all(one.busy <= one.step for one in alone)
