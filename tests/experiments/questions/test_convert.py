"""GOAL is written of every step whose calls have sizes; the answer says what its replay takes."""

import pytest

import twofold as tf
from helpers.places import ROOT, SAMPLES, SHARED
from simulator.support.quantities import format_quantity

LIVE = ROOT / "traces" / "live"
RING = SHARED / "traces" / "other" / "astra_custom_ring8"


def test_a_whole_job_is_replayed(tmp_path):
    file, cluster = tmp_path / "job.goal", LIVE / "net250.yaml"
    *_, note = tf.convert(SAMPLES / "gloo-ddp-4", file, "goal", cluster=str(cluster)).notes
    again = tf.replay(file, cluster).base.timeline.makespan
    assert f"the file takes {format_quantity(again, 's')}, the step" in note


def test_a_job_with_missing_ranks_is_written_though_it_cannot_be_replayed(tmp_path):
    file = tmp_path / "job.goal"
    trace = SAMPLES / "gpu-dp2-tp4" / "rank0.json.gz"
    *_, note = tf.convert(trace, file, "goal", cluster="dgx-a100").notes
    assert note.startswith("1 of 8 ranks are in the file")
    assert file.stat().st_size > 1000


@pytest.mark.skipif(not RING.exists(), reason="no shared traces beside the checkout")
def test_a_ring_of_eager_messages_is_written_though_it_stands_still(tmp_path):
    file = tmp_path / "ring.goal"
    *_, note = tf.convert(RING, file, "goal", cluster="dgx-a100").notes
    assert "deadlocks" in note
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("trace", ["zero3-sleep-4", "moe-4"])
def test_ranks_that_are_missing_are_as_late_in_profiles_as_in_the_trace(trace, tmp_path):
    """A reader takes what a call lasts beyond its cost for their lateness, once more."""
    file, cluster = LIVE / trace / "rank0.json.gz", LIVE / f"{trace}.yaml"
    before = tf.replay(file, cluster, step="median")
    tf.convert(file, tmp_path, "kineto", cluster=str(cluster), step="median")
    again = tf.replay(tmp_path, cluster)
    assert before.base.scenario.workload.calls.late.sum() > 0.01
    assert again.base.timeline.makespan == pytest.approx(before.base.latency, rel=1e-4)
