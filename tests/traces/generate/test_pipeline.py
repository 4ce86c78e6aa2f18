"""Schedules of pipelines: what they must contain, and the bubbles the papers state."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import direct
from helpers.strategies import switch_network
from helpers.synthetic_jobs import generated
from simulator.engine.simulate import simulate
from simulator.schedule import Plan
from simulator.workload import What
from traces.generate.kernel_times import KernelRates
from traces.generate.model import parse_model
from traces.generate.parallelism import SCHEDULES, Parallelism, Pipeline, SlotKind
from traces.generate.run import Training

SQUARE = parse_model(
    """
name: square
layers: 48
hidden: 16384
vocabulary: 2
attention: {kind: grouped, heads: 128, kv_heads: 128, head: 128}
ffn: 65536
gated: false
""",
    source="square",
)
"""A head and scores that cost nothing beside its layers: stages are equal, and F = I = W."""
ARITHMETIC = KernelRates(peak=1e15, memory_bandwidth=1e30, compute_efficiency=1.0)
CLOSE = 1e-4
"""More than head and scores of SQUARE are of a layer: 1 / 12h and s / 6h for one token, s = 1."""

places = st.integers(1, 6).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p - 1)))


def step(schedule, p, m, virtual=1, recompute="none"):
    """Simulated step time on a network that costs nothing, in forward slots of a whole stage."""
    run = Training(
        micro_batch=1, global_batch=m, sequence=1, schedule=schedule, recompute=recompute
    )
    parallelism = Parallelism(pp=p, virtual=virtual)
    workload = generated(SQUARE, parallelism, run, ARITHMETIC)
    network = switch_network(p, bandwidth=math.inf, latency=0.0)
    timeline = simulate(workload, network, lambda call, _: Plan(direct.send_receive()))
    layer = 24 * 16384**2 / 1e15
    return timeline.makespan / (layer * SQUARE.layers / p)


@given(at=places, m=st.integers(1, 12), name=st.sampled_from(["gpipe", "1f1b", "zb-h1"]))
def test_every_micro_batch_goes_forward_and_back_once(at, m, name):
    (stages, stage), seen = at, []
    for slot in SCHEDULES[name](stage, Pipeline(stages, m)):
        seen.append((slot.kind, slot.micro_batch))
        if slot.kind in (SlotKind.BACKWARD, SlotKind.INPUT_GRADIENT):
            assert (SlotKind.FORWARD, slot.micro_batch) in seen
        if slot.kind is SlotKind.WEIGHT_GRADIENT:
            assert (SlotKind.INPUT_GRADIENT, slot.micro_batch) in seen
    assert len(seen) == len(set(seen)) == m * (3 if name == "zb-h1" else 2)


@given(at=places, rounds=st.integers(1, 4), chunks=st.integers(2, 4))
def test_an_interleaved_stage_runs_every_chunk_of_every_micro_batch(at, rounds, chunks):
    (stages, stage) = at
    slots = SCHEDULES["interleaved"](stage, Pipeline(stages, stages * rounds, chunks))
    forward = [slot[1:] for slot in slots if slot.kind is SlotKind.FORWARD]
    backward = [slot[1:] for slot in slots if slot.kind is SlotKind.BACKWARD]
    every = {(batch, chunk) for batch in range(stages * rounds) for chunk in range(chunks)}
    assert set(forward) == set(backward) == every
    assert len(slots) == 2 * len(every)


@given(at=places, rounds=st.integers(2, 4), chunks=st.integers(2, 4))
def test_an_interleaved_stage_runs_ahead_as_megatron_does(at, rounds, chunks):
    """2 (p - stage - 1) + (v - 1) p slots before 1F1B sets in (arXiv 2104.04473, figure 4)."""
    (stages, stage) = at
    slots = SCHEDULES["interleaved"](stage, Pipeline(stages, stages * rounds, chunks))
    first_back = [slot.kind for slot in slots].index(SlotKind.BACKWARD)
    ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages
    assert first_back == min(ahead + 1, stages * rounds * chunks)


@given(at=places, m=st.integers(1, 12), name=st.sampled_from(["1f1b", "zb-h1"]))
def test_a_stage_of_1f1b_holds_no_more_micro_batches_than_stages_follow_it(at, m, name):
    """arXiv 2006.09503 section 3.2; ZB-H1 keeps to it (arXiv 2401.10241 section 2.1)."""
    (stages, stage), held, most = at, 0, 0
    for slot in SCHEDULES[name](stage, Pipeline(stages, m)):
        done = SlotKind.BACKWARD if name == "1f1b" else SlotKind.INPUT_GRADIENT
        held += {SlotKind.FORWARD: 1, done: -1}.get(slot.kind, 0)
        most = max(most, held)
    assert most == min(stages - stage, m)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 4), (4, 9), (8, 3)])
def test_the_bubble_is_p_minus_1_slots(schedule, p, m):
    """(p - 1)(F + B), a fraction (p - 1) / (m + p - 1) of the step (2104.04473 section 2.2.1)."""
    time = step(schedule, p, m)
    assert time == pytest.approx(3 * (m + p - 1), rel=CLOSE)
    assert 1 - 3 * m / time == pytest.approx((p - 1) / (m + p - 1), rel=10 * CLOSE)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 4, 2), (4, 12, 3), (4, 8, 6)])
def test_interleaving_divides_the_bubble_by_the_chunks(p, m, v):
    """arXiv 2104.04473 section 2.2.2: (p - 1)(F + B) / v."""
    assert step("interleaved", p, m, v) == pytest.approx(3 * (m + (p - 1) / v), rel=CLOSE)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (4, 12), (6, 12)])
def test_the_bubble_of_zb_h1_is_that_of_the_paper(p, m):
    """(p - 1)(F + I - W) = p - 1 slots where all three are equal (arXiv 2401.10241 table 2)."""
    assert step("zb-h1", p, m) == pytest.approx(3 * m + (p - 1), rel=CLOSE)


def test_recomputing_makes_every_slot_back_a_forward_slot_longer():
    """A stage repeats its forward pass when the gradient has come, not before."""
    assert step("1f1b", 4, 8, recompute="full") == pytest.approx(4 * (8 + 4 - 1), rel=CLOSE)


def test_messages_go_to_the_next_stage_and_gradients_back():
    run = Training(micro_batch=1, global_batch=3, sequence=8)
    workload = generated(SQUARE, Parallelism(pp=3), run, ARITHMETIC)
    ends = [workload.call_view(call).group.ranks for call in range(len(workload.calls))]
    assert sorted(ends) == sorted(3 * [(0, 1), (1, 2), (1, 0), (2, 1)])
    for op in workload.ops():
        if op.call is not None:
            sender, receiver = ends[op.call]
            assert op.rank == (sender if op.what is What.SEND else receiver)
