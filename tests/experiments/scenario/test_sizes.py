"""``layers 4 -> 6``, ``micro-batches 4 -> 8``: held to the same programs, built at that size."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from helpers.programs import NODE, RANKS, Pipeline, Program, build
from helpers.slowed_programs import as_recorded
from simulator.support.errors import WhatIfError
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
    return Scenario(build(program), CLUSTER, nodes=RANKS // NODE)


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
        ("layers 5 -> 4", "must be larger"),
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
