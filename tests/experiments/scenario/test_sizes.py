"""``layers 4 -> 6``, ``micro-batches 4 -> 8``: held to the same programs, built at that size."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twofold as tf
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from experiments.scenario.sizes import HOST_ERROR, _units_per_layer
from helpers.places import ROOT, SAMPLES
from helpers.programs import NODE, Pipeline, Program, build
from helpers.slowed_programs import as_recorded
from simulator.builder import WorkloadBuilder
from simulator.calls import KINDS
from simulator.support.errors import WhatIfError
from simulator.workload import LAUNCH_DELAY, What
from topologies import load_cluster
from traces.load import load

CLUSTER = load_cluster("dgx-a100")
PLAIN = Program(
    layers=5,
    kernel=400.0,
    launch=0.01,
    latency=5.0,
    activation=2**22,
    gradient=2**24,
    expert=0,
    sharded=False,
    tensor=False,
    small=0,
    read_back=False,
    skew=0.0,
    straggler=1.0,
    jitter=0.0,
    seed=1,
)
"""Without jitter: a program of another size differs in nothing but its size."""


def scenario(program):
    return Scenario(build(program), CLUSTER, nodes=program.ranks // NODE)


def recorded(program):
    whole = scenario(program)
    return replace(whole, workload=as_recorded(whole.run()))


def longer(program, text):
    return parse_change(text).apply(recorded(program)).scenario


def counts(workload):
    """How often each rank does what."""
    names = np.array(workload.names)
    return {
        rank: Counter(names[workload.name[workload.ops_of(rank)]].tolist())
        for rank in workload.ranks
    }


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("batches", [(6, 7), (7, 12)])
def test_more_micro_batches_are_the_pipeline_of_that_size(stages, in_turn, batches):
    now, then = batches
    pipeline = Pipeline(stages=stages, batches=now + stages, in_turn=in_turn)
    small = replace(PLAIN, layers=1, pipeline=pipeline)
    large = replace(small, pipeline=replace(pipeline, batches=then + stages))
    found = longer(small, f"micro-batches {now + stages} -> {then + stages}")
    wanted = scenario(large)
    assert counts(found.workload) == counts(wanted.workload)
    assert found.run().makespan == pytest.approx(wanted.run().makespan, rel=2e-3)


@pytest.mark.parametrize("layers", [(5, 6), (6, 12)])
def test_more_layers_are_the_program_of_that_size(layers):
    """Gradients are reduced beside the backward pass; the last layer's are larger."""
    now, then = layers
    small = replace(PLAIN, layers=now)
    found, wanted = longer(small, f"layers {now} -> {then}"), scenario(replace(small, layers=then))
    assert counts(found.workload) == counts(wanted.workload)
    assert found.run().makespan == pytest.approx(wanted.run().makespan, rel=2e-3)


@pytest.mark.parametrize("layers", [(6, 5), (12, 6)])
def test_fewer_layers_take_as_long_as_the_program_of_that_size(layers):
    now, then = layers
    found = longer(replace(PLAIN, layers=now), f"layers {now} -> {then}")
    wanted = scenario(replace(PLAIN, layers=then))
    assert found.run().makespan == pytest.approx(wanted.run().makespan, rel=2e-3)
    assert len(found.workload.calls) == len(wanted.workload.calls)


@pytest.mark.parametrize(("launch", "error"), [(0.01, 0.0), (900.0, HOST_ERROR)])
def test_copies_of_layers_that_wait_for_a_profiled_host_are_as_uncertain_as_the_host(launch, error):
    assert longer(replace(PLAIN, launch=launch), "layers 5 -> 8").host_error == error


STACK = replace(PLAIN, layers=4)
"""Layers that two stages share out to four."""


@pytest.mark.parametrize(
    ("now", "then", "layers"), [(2, 4, 4), (4, 2, 2), pytest.param(2, 3, 3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("other", "in_turn"),
    [
        pytest.param({}, False, id="plain"),
        pytest.param({}, True, id="plain-in-turn"),
        pytest.param({"early": True, "tensor": True}, False, id="early-tensor"),
        pytest.param({"norm": True, "sharded": True}, True, id="norm-sharded-in-turn"),
        pytest.param({"expert": 2**20}, True, id="experts-in-turn"),
        pytest.param(
            *({"early": True, "tensor": True}, True),
            id="early-tensor-in-turn",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"norm": True, "sharded": True}, False, id="norm-sharded", marks=pytest.mark.slow
        ),
        pytest.param({"expert": 2**20}, False, id="experts", marks=pytest.mark.slow),
    ],
)
def test_other_stages_are_the_pipeline_of_that_size(now, then, layers, in_turn, other):
    """Ranks of a stage stay two replicas of two; passes, their calls and messages are the same."""
    of_pipeline = {name: other[name] for name in ("early", "norm") if name in other}
    of_layers = {name: value for name, value in other.items() if name not in of_pipeline}
    pipeline = Pipeline(stages=now, batches=6, in_turn=in_turn, **of_pipeline)
    small = replace(PLAIN, layers=layers, ranks=4 * now, pipeline=pipeline, **of_layers)
    large = replace(small, layers=layers * now // then, ranks=4 * then)
    large = replace(large, pipeline=replace(pipeline, stages=then))
    divided, wanted = longer(small, f"stages {now} -> {then}"), scenario(large)
    assert divided.ranks == wanted.ranks
    assert divided.nodes == wanted.nodes
    for kind in ("send_receive", "all_to_all", "all_reduce"):
        assert groups_of(divided.workload, kind) == groups_of(wanted.workload, kind)
    # Layers exchange and reduce different bytes, by their place among those of a stage.
    assert divided.run().makespan == pytest.approx(wanted.run().makespan, rel=2e-2)


def groups_of(workload, kind):
    """Ranks of all calls of a kind, in any order."""
    calls = workload.calls
    numbers = calls.group[calls.kind == KINDS.index(kind)].tolist()
    return Counter(workload.groups[number].ranks for number in numbers)


def test_passes_between_the_same_messages_are_told_apart_by_other_stages():
    """Under 1F1B the last stage never shows one alone; its kernels are divided two to one."""
    pipeline = Pipeline(stages=2, batches=5, in_turn=True)
    whole = recorded(replace(STACK, pipeline=pipeline, jitter=0.02))
    divided = parse_change("stages 2 -> 4").apply(whole).scenario.workload
    kernels = divided.what == What.COMPUTE
    busy = [float(divided.duration[kernels & (divided.rank == rank)].sum()) for rank in (8, 12)]
    assert busy[0] == pytest.approx(busy[1], rel=0.15)
    total = float(whole.workload.duration[whole.workload.what == What.COMPUTE].sum())
    assert float(divided.duration[kernels].sum()) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("text", ["stages 2 -> 4", "micro-batches 5 -> 6 and stages 2 -> 1"])
def test_kernels_of_other_stages_are_of_the_modules_of_those_recorded(text):
    whole = recorded(replace(STACK, pipeline=Pipeline(stages=2, batches=5, in_turn=True)))
    names = whole.workload.names
    named = replace(whole.workload, module=whole.workload.name, modules=names)
    step = parse_change(text).apply(replace(whole, workload=named)).scenario.workload
    kernels = step.what == What.COMPUTE
    assert (step.module[kernels] >= 0).all()
    ops = np.flatnonzero(step.module >= 0)
    of_modules = [names[number] for number in step.module[ops]]
    assert of_modules == [step.names[number] for number in step.name[ops]]


@pytest.mark.parametrize(
    ("pipeline", "text", "message"),
    [
        (Pipeline(), "stages 2 -> 4", "exchange no messages"),
        (Pipeline(stages=2, batches=5), "stages 4 -> 2", "the pipeline has 2, not 4"),
        (Pipeline(stages=2, batches=5), "stages 2 -> 2", "changes nothing"),
        (Pipeline(stages=2, batches=5), "stages 2 -> 1024", "need 1,024 nodes"),
        (Pipeline(stages=2, batches=5), "stages 2 -> 32", "too few kernels to be divided"),
        (Pipeline(stages=2, batches=5), "rank 0 stages 2 -> 4", "leave 'rank' out"),
    ],
)
def test_stages_that_cannot_be_divided_are_refused(pipeline, text, message):
    with pytest.raises(WhatIfError, match=message):
        longer(replace(STACK, pipeline=pipeline), text)


def test_interleaved_stages_are_refused():
    path = ROOT / "traces" / "live" / "interleaved-2"
    with pytest.raises(WhatIfError, match="not in the order of 1f1b or gpipe"):
        tf.what_if(path, f"{path}.yaml", ["stages 2 -> 4"])


def test_added_units_last_as_the_median_of_those_recorded():
    whole = recorded(PLAIN)
    slow = whole.workload.duration.copy()
    first = whole.workload.ops_of(0)
    kernels = first[whole.workload.duration[first] > 1e-4]
    slow[kernels[1]] *= 3.0  # one layer of eleven
    found = parse_change("layers 5 -> 10").apply(
        replace(whole, workload=whole.workload.lasting(slow))
    )
    added = found.scenario.workload.duration[len(slow) :]
    assert added.max() == pytest.approx(np.sort(slow[kernels])[-2], rel=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers 8 -> 9", r"launches nothing that repeats 8 times.*its units repeat"),
        ("layers 4 -> 8", "repeat 5 times, not 4"),
        ("layers 6 -> 8", "only 49 % of the time of its kernels"),
        ("micro-batches 5 -> 4", "rank 0 has no messages"),
        ("layers 2 -> 4", "record a step of 3 or more"),
        ("layers 5 to 6", "write the present and the new number"),
        ("layers 5 -> 60000000", "ops more are too many"),
        ("layers five -> 6", "write the present and the new number"),
        ("micro-batches 5 -> 6", "rank 0 has no messages"),
        ("rank 0 layers 5 -> 6", "leave 'rank' out"),
    ],
)
def test_what_cannot_be_told_is_refused(text, message):
    with pytest.raises(WhatIfError, match=message):
        longer(PLAIN, text)


def accumulating(batches: int) -> Scenario:
    """Forward and backward of three layers a micro-batch; from the second on gradients are added.

    One kernel begins late for a reason that is not recorded.
    """
    passes = ["forward"] * 3 + ["loss"] + ["backward", "weights"] * 3
    added = [*passes[:4], *["backward", "weights", "add"] * 3]
    return launching([*passes, *added * (batches - 1), *["multi_tensor_apply"] * 2], late=17)


def launching(kernels: list[str], late: int | None = None) -> Scenario:
    """A rank that launches these kernels in turn; one begins ``late`` for an unrecorded reason."""
    builder, before, host = WorkloadBuilder(job_ranks=1), None, None
    for number, name in enumerate(kernels):
        launch = builder.op(What.HOST, rank=0, lane="main", name="launch", duration=1e-5)
        kernel = builder.op(What.COMPUTE, rank=0, lane="stream 7", name=name, duration=1e-4)
        waits = [launch] if before is None else [launch, before]
        if number == late:
            delay = builder.op(What.COPY, rank=0, lane="stream 7", name=LAUNCH_DELAY, duration=0.0)
            for op in waits:
                builder.edge(op, delay)
            waits = [delay]
        for op in waits:
            builder.edge(op, kernel)
        if host is not None:
            builder.edge(host, launch)
        before, host = kernel, launch
    whole = Scenario(builder.build(), CLUSTER)
    return replace(whole, workload=as_recorded(whole.run()))


@pytest.mark.parametrize("then", [1, 2, 5, 9])
def test_accumulated_micro_batches_are_the_step_with_as_many(then):
    found = parse_change(f"micro-batches 4 -> {then}").apply(accumulating(4)).scenario
    assert found.run().makespan == pytest.approx(accumulating(then).run().makespan, rel=1e-9)
    for text in ("micro-batches 3 -> 6", "micro-batches 8 -> 9"):
        with pytest.raises(WhatIfError, match="distinguished from layers"):
            parse_change(text).apply(accumulating(4))
    with pytest.raises(WhatIfError, match="distinguished from layers"):
        parse_change("micro-batches 3 -> 6").apply(accumulating(1))


def test_updates_in_batches_that_are_one_more_than_layers_do_not_hide_how_many_layers_there_are():
    def step(layers):
        updates = [name for name in ("scale", "square", "divide") for _ in range(layers + 1)]
        passes = [["norm", "forward"], ["loss"], ["backward", "weights", "norm"]]
        return launching([*passes[0] * layers, *passes[1], *passes[2] * layers, *updates])

    found = parse_change("layers 5 -> 7").apply(step(5)).scenario
    assert found.run().makespan == pytest.approx(step(7).run().makespan, rel=1e-9)
    with pytest.raises(WhatIfError, match="repeat 5 times, not 6"):
        parse_change("layers 6 -> 8").apply(step(5))


def test_messages_that_are_no_multiple_of_the_micro_batches_are_refused():
    small = replace(PLAIN, layers=1, pipeline=Pipeline(stages=2, batches=5))
    with pytest.raises(WhatIfError, match=r"5 messages of .*, not a multiple of 4 micro-batches"):
        longer(small, "micro-batches 4 -> 8")


def test_computation_that_only_lies_between_calls_may_hide_layers():
    """DDP reduces in buckets of two layers, and computes the forward pass before the first."""
    workload = load(SAMPLES.parent / "live" / "sizes" / "ddp-2").workload
    whole = Scenario(workload, load_cluster(SAMPLES.parent / "live" / "net250.yaml"))
    for layers in (3, 6):
        with pytest.raises(WhatIfError, match="cannot be recognised"):
            parse_change(f"layers {layers} -> {2 * layers}").apply(whole)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(-2, 2))
def test_units_of_a_layer_are_a_whole_number_but_for_one_at_the_ends(each, layers, off):
    """Of fewer than four layers none is missing: one more is of another number of them."""
    found = _units_per_layer(max(0, each * layers + off), layers)
    if layers < 4:
        assert found * layers in (0, each * layers + off)
        assert found == each or off
    else:
        assert found == (each if abs(off) <= 1 else 0)
