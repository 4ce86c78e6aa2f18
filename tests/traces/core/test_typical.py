"""The typical step: the work of the median, the structure and the scatter of one step."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.baseline import baseline
from helpers.places import ROOT
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import TraceError
from simulator.workload import UNEXPLAINED_HOST, What
from traces.core.loaded import MEDIAN, Coverage, Loaded
from traces.core.typical import call_ratios, typical_step, with_usual_work, with_work, work_ratios
from traces.load import load

LIVE = ROOT / "traces" / "live"


def step(host, kernel, *, transfer=1.0, ready=0.0, size=8.0):
    """Two ranks: a host op and a kernel each, the second's twice as long, and a call."""
    builder = WorkloadBuilder(job_ranks=2)
    row = CallRow("all_reduce", builder.group((0, 1)), 0, size, transfer=transfer)
    call = builder.call(row)
    for rank in (0, 1):
        ops = [
            builder.op(
                what, rank=rank, lane="l", name="n", duration=duration * (1 + rank), ready=early
            )
            for what, duration, early in ((What.HOST, host, ready), (What.COMPUTE, kernel, 0.0))
        ]
        builder.edge(*ops, lag=0.5)
        joined = builder.op(What.COLLECTIVE, rank=rank, lane="c", name="c", duration=0.0, call=call)
        builder.edge(ops[1], joined)
    return builder.build()


def trace(steps, middle):
    """Read steps, numbered from 0, of which one is in the middle; measured are 10, 11, … s."""

    def read(name):
        number = middle if name == MEDIAN else int(name)
        if steps[number] is None:
            raise TraceError(f"step {name} is damaged")
        nothing = {"kernels": 0, "launches_paired": 0, "collectives": 1, "sizes_known": 1}
        coverage = Coverage(
            step=str(number),
            steps=tuple(range(len(steps))),
            ranks=(0, 1),
            ranks_in_job=2,
            collectives_matched=1,
            **nothing,
        )
        return Loaded("t", steps[number], coverage, 10.0 + number, {}, {})

    return read


def test_each_part_is_as_long_in_all_as_in_the_median_and_keeps_its_proportions():
    steps = [step(2.0, 9.0), step(2.5, 3.0), step(3.0, 5.0)]
    usual = with_usual_work(steps[2], steps)
    assert usual.duration.tolist() == pytest.approx([2.5, 5.0, 0.0, 5.0, 10.0, 0.0])
    assert usual.edges.lag.tolist() == steps[2].edges.lag.tolist()


def test_a_part_that_is_much_longer_elsewhere_has_another_cause_and_stays():
    steps = [step(1.0, 1.0, ready=0.1), step(9.0, 1.0, ready=5.0), step(9.0, 1.0, ready=5.0)]
    usual = with_usual_work(steps[0], steps)
    assert usual.duration.tolist() == steps[0].duration.tolist()
    assert usual.ready.tolist() == steps[0].ready.tolist()


def test_a_silence_of_one_step_is_no_work_of_the_others():
    """The step in the middle slept for 3 s besides 2 s of work: the others work for 2 s, too."""
    steps = [step(2.0, 1.0), step(2.0, 1.0), slept(3.0, step(2.0, 1.0))]
    usual = with_usual_work(steps[2], steps)
    assert usual.duration.tolist() == [2.0, 1.0, 0.0, 4.0, 2.0, 0.0, 0.0]
    steps = [slept(seconds, step(2.0, 1.0)) for seconds in (1.0, 2.0, 3.0)]
    assert with_usual_work(steps[2], steps).duration.tolist()[-1] == 2.0
    assert with_usual_work(steps[0], steps).duration.tolist()[-1] == 1.0


def slept(seconds, workload):
    """Let a step's first rank be silent for a while, beside its work."""
    builder = WorkloadBuilder(job_ranks=2)
    calls = [builder.call(CallRow("all_reduce", builder.group((0, 1)), 0, size=8.0, transfer=1.0))]
    for op in workload.ops():
        joined = {} if op.call is None else {"call": calls[op.call]}
        builder.op(op.what, rank=op.rank, lane=op.lane, name="n", duration=op.duration, **joined)
    builder.op(What.HOST, rank=0, lane="l", name=UNEXPLAINED_HOST, duration=seconds)
    return builder.build()


def test_transfers_and_starts_are_those_of_the_median():
    steps = [step(1, 1, transfer=one, ready=2 * one) for one in (2.0, 2.5, 4.0)]
    usual = with_usual_work(steps[0], steps)
    assert usual.calls.transfer.tolist() == [2.5]
    assert usual.ready.max() == 5.0


def test_what_a_step_has_none_of_stays_so():
    steps = [step(0.0, 1.0), step(3.0, 1.0, transfer=np.nan), step(3.0, 1.0, ready=1.0)]
    usual = with_usual_work(steps[0], steps)
    assert usual.duration.tolist() == steps[0].duration.tolist()
    assert usual.ready.max() == 0


def test_the_step_in_the_middle_stands_for_all_and_the_measured_one_is_the_median():
    loaded = typical_step(trace([step(host, 1.0) for host in (2.0, 2.2, 2.4, 2.6)], 3))
    assert loaded.coverage.step == "3"
    assert loaded.coverage.typical_of == (0, 1, 2, 3)
    assert loaded.measured_step == 11.5
    assert loaded.workload.duration[0] == pytest.approx(2.3)


@pytest.mark.parametrize("hosts", [(9.0, 2.0, 3.0), (2.0, 3.0)])
def test_of_fewer_than_three_steps_there_is_none_in_the_middle(hosts):
    """The first of three is taken for a warm-up."""
    loaded = typical_step(trace([step(host, 1.0) for host in hosts], len(hosts) - 1))
    assert loaded.coverage.typical_of == ()
    assert loaded.workload.duration[0] == 3.0


def test_steps_with_other_calls_are_left_out_and_named():
    steps = [step(1.0, 1.0), step(2.0, 1.0, size=16.0), step(3.0, 1.0), step(5.0, 1.0)]
    loaded = typical_step(trace(steps, 2))
    assert loaded.coverage.typical_of == (0, 2, 3)
    assert loaded.coverage.notes == (
        "step 1 makes other calls than step 2 and is left out of the typical step",
    )
    alone = typical_step(trace(steps[:2], 0))
    assert alone.coverage.typical_of == ()
    assert alone.measured_step == 10.0
    assert alone.workload.duration.tolist() == steps[0].duration.tolist()


def test_sizes_that_follow_the_data_make_no_other_calls():
    """A table's rows that a batch needs, 2.62 to 2.81 MB (``a100_16gpu_dlrm_like_rank0``)."""
    sizes = 2.76e6, 2.62e6, 2.74e6, 2.81e6, 2.74e6 * 1.6, 2.74e6 / 1.6, float("nan")
    loaded = typical_step(trace([step(1.0, 1.0, size=size) for size in sizes], 2))
    assert loaded.coverage.typical_of == (0, 1, 2, 3)
    unknown = typical_step(trace([step(1.0, 1.0, size=float("nan")) for _ in range(4)], 2))
    assert unknown.coverage.typical_of == (0, 1, 2, 3)


def test_a_step_that_is_much_longer_is_left_out_and_named():
    read = trace([step(1.0, 1.0) for _ in range(4)], 2)

    def with_evaluation(name):
        loaded = read(name)
        return replace(loaded, measured_step=20.0) if name == "1" else loaded

    loaded = typical_step(with_evaluation)
    assert loaded.coverage.typical_of == (0, 2, 3)
    assert loaded.coverage.notes == (
        "step 1 took 20 s (median 12.5 s) and is left out of the typical step",
    )


def test_a_step_that_cannot_be_read_is_none_of_them():
    assert typical_step(trace([step(1.0, 1.0), None], 0)).coverage.typical_of == ()


def test_a_number_means_exactly_that_step():
    folder = LIVE / "ddp-cpu-2"
    numbered, middle, usual = (load(folder, name) for name in ("5", "median", "typical"))
    assert middle.coverage.step == usual.coverage.step == "5"
    assert numbered.workload.duration.tolist() == middle.workload.duration.tolist()
    assert usual.coverage.typical_of == (3, 4, 5)
    measured = [load(folder, str(number)).measured_step for number in (3, 4, 5)]
    assert usual.measured_step == np.median(measured)


def test_formats_without_numbered_steps_are_read_as_they_are(tmp_path):
    from experiments.questions.convert import convert

    convert(LIVE / "ddp-cpu-2", tmp_path / "job.et", "chakra")
    usual, middle = (load(tmp_path / "job.et", name) for name in ("typical", "median"))
    assert usual.workload.duration.tolist() == middle.workload.duration.tolist()
    assert usual.coverage.typical_of == ()


def test_the_error_of_a_baseline_is_against_the_median():
    base = baseline(LIVE / "ddp-cpu-2", LIVE / "net250.yaml")
    assert base.error == pytest.approx(base.replayed_step / base.loaded.measured_step - 1)
    assert base.answer()["coverage"]["typical_of"] == [3, 4, 5]
    recorded = [baseline(LIVE / "ddp-cpu-2", LIVE / "net250.yaml", step=step) for step in "345"]
    steps = sorted(one.loaded.measured_step for one in recorded)
    assert base.loaded.measured_step == steps[1]
    assert "step 6 took 911.1 ms" in base.loaded.coverage.notes[-1]


def test_how_ranks_and_calls_scatter_is_by_part_rank_and_step():
    usual, slow = step(2.0, 4.0), step(3.0, 4.0, transfer=1.5)
    ratios = work_ratios(usual, [usual, slow])
    assert ratios.shape == (3, 2, 2)
    np.testing.assert_allclose(ratios[..., 0], 1)
    np.testing.assert_allclose(ratios[..., 1], [[1.5, 1.5], [1, 1], [1, 1]])
    np.testing.assert_allclose(call_ratios(usual, [usual, slow]), [[1, 1.5]])
    np.testing.assert_array_equal(with_work(usual, ratios[..., 1]).duration, slow.duration)


def test_calls_of_which_no_transfer_was_measured_do_not_scatter():
    unknown = step(2.0, 4.0, transfer=np.nan)
    assert call_ratios(unknown, [step(2.0, 4.0)]).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("lengths", "median"),
    [([100, 130, 110], 110), ([300, 120, 110], 120), ([300, 130, 110, 120], 120)],
)
def test_of_three_steps_the_middle_one_is_taken_whether_or_not_the_first_is_a_warm_up(
    tmp_path, lengths, median
):
    events, begin = [], 0
    for number, length in enumerate(lengths, 1):
        host = {"ph": "X", "pid": 1, "tid": 1}
        of_step = {"cat": "user_annotation", "name": f"ProfilerStep#{number}"}
        events.append({**host, **of_step, "ts": begin, "dur": length})
        work = {"cat": "cpu_op", "name": "aten::mm"}
        events.append({**host, **work, "ts": begin + 1, "dur": length - 2})
        begin += length
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    assert load(file).measured_step == pytest.approx(1e-6 * median)
