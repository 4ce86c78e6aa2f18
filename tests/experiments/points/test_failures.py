"""Failures of a job: how they are written, and what fewer of them save."""

import re

import pytest

import twofold as tf
from experiments.points.failures import FailingJob, Failures, goodput, parse_failures
from helpers.places import ROOT, SAMPLES
from simulator.support.errors import WhatIfError

LIVE = ROOT / "traces" / "live"
USUAL = "mtbf 50000 h, checkpoint 60 s, restart 10 min"


def test_a_job_fails_as_many_times_as_often_as_it_has_accelerators():
    # Llama 3's training: 419 interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, section
    # 3.3.4) are one per GPU in 50,700 hours, or of the job in 3.1.
    one = 54 * 24 * 16384 / 419
    job = parse_failures(f"mtbf {one} h, checkpoint 1 min, restart 0.1 h", 16384)
    assert job.mtbf / 3600 == pytest.approx(54 * 24 / 419)
    assert (job.checkpoint, job.restart, job.every) == (60, pytest.approx(360), None)


@pytest.mark.parametrize("factor", [2, 3.5, 0.5])
def test_what_is_saved_is_the_time_of_a_step_with_its_share_of_what_is_lost(factor):
    job = FailingJob(parse_failures(USUAL, 1024), 1024, step=0.5, factor=factor)
    answer = job.answer()
    for row in answer["better"]:
        then = 0.5 / (row.productive_pct / 100)
        assert row.utility_pct == pytest.approx(100 * (1 - then / answer["step_s"]))
        times = row.then_s / row.now_s
        is_longer = row.what == "time between failures"
        assert times == pytest.approx(factor if is_longer else 1 / factor)
    assert answer["steps_a_month"] * answer["step_s"] == pytest.approx(30 * 86400)


def test_utility_says_what_becomes_of_a_run_and_changes_no_utility():
    plain = tf.utility(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2)
    failing = tf.utility(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2, failures=USUAL)
    assert [row.utility_pct for row in plain.points] == [row.utility_pct for row in failing.points]
    assert plain.answer()["failures"] is None
    answer = failing.answer()["failures"]
    whole = goodput(Failures(mtbf=50000 * 3600 / 8, checkpoint=60, restart=600))
    assert answer["productive_pct"] == pytest.approx(100 * whole.productive)
    (section,) = (part for part in failing.document().sections if part.anchor == "failures")
    assert "The job fails every 6,250 h." in section.blocks[0].text


def test_a_month_has_all_steps_and_not_slow_ones_alone():
    where = LIVE / "ddp-sleep-4", LIVE / "ddp-sleep-4.yaml"
    report = tf.utility(*where, step="p95", resources=["host"], failures=USUAL)
    drawn, answer = report.base.drawn, report.answer()["failures"]
    assert drawn.median < drawn.step
    assert answer["step_s"] == pytest.approx(drawn.median / (answer["productive_pct"] / 100))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mtbf 50000 h", "checkpoint is missing"),
        ("mtbf 50000 h, checkpoint 60 s, restart 10 parsecs", "'restart 10 parsecs' is not one of"),
        ("mtbf 50000 h, mtbf 1 h", "mtbf is there twice"),
        ("mtbf 0 h, checkpoint 60 s, restart 1 s", "must be more than 0"),
        ("mtbf 1 h, checkpoint 0 s, restart 1 s", "say every"),
        ("mtbf 1 h, checkpoint 20 h, restart 1 s", "leaves no time to steps"),
        ("mtbf 1e300 h, checkpoint 60 s, restart 1 s", "longer than ten thousand years"),
        ("mtbf 1.2.3 h, checkpoint 60 s, restart 1 s", "'1.2.3' is not a number"),
        ("", "is not one of"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(text, reason):
    with pytest.raises(WhatIfError, match=re.escape(reason)):
        parse_failures(text, 8)


def test_a_job_that_never_keeps_a_step_has_no_time_of_one():
    job = FailingJob(Failures(mtbf=1, checkpoint=1, restart=1, every=1e6), 8, step=0.5, factor=2)
    assert (job.answer()["productive_pct"], job.answer()["step_s"]) == (0, None)
