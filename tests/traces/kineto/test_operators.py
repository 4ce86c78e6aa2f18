"""Whose a kernel is: the operators around its launch, tried one by one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.serving.surface import Batch
from simulator.support.errors import TraceError
from traces.kineto.operators import ENGINE_STEP, engine_steps, recorded_operators

WANTED = "aten::mm"


def event(category, name, start, lasts, thread=1, **args):
    where = {"pid": 0, "tid": thread, "ts": start, "dur": lasts}
    return {"ph": "X", "cat": category, "name": name, **where, "args": args}


def write(folder, events):
    file = folder / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


@st.composite
def nested(draw, start=0, end=64, depth=0):
    """Operators, each within another or beside it, and no two from one instant on."""
    made, at = [], start
    while depth < 4 and at + 2 <= end and draw(st.booleans()):
        begin = draw(st.integers(at, end - 2))
        over = draw(st.integers(begin + 1, end - 1))
        name = draw(st.sampled_from(["aten::mm", "aten::add", "module"]))
        made.append((name, begin, over, draw(st.booleans())))
        made += draw(nested(begin + 1, over, depth + 1))
        at = over + 1
    return made


@tries(60)
@given(
    threads=st.tuples(nested(), nested()),
    launches=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 64)), min_size=1, max_size=6, unique=True
    ),
    turned=st.booleans(),
)
def test_a_kernel_is_of_the_innermost_wanted_operator_else_of_the_innermost_with_sizes(
    threads, launches, turned, tmp_path_factory
):
    events, expected = [], {}
    for thread, operators in enumerate(threads):
        for number, (name, begin, over, has_sizes) in enumerate(operators):
            sizes = {"Input Dims": [[thread, number]]} if has_sizes else {}
            events.append(event("cpu_op", name, begin, over - begin, thread, **sizes))
    for number, (thread, time) in enumerate(launches, 1):
        name = f"k{number}"
        events.append(event("cuda_runtime", "launch", time, 1, thread, correlation=number))
        events.append(event("kernel", name, 100 + number, number, 7, correlation=number))
        around = [
            (begin, at)
            for at, (_, begin, over, _) in enumerate(threads[thread])
            if begin <= time <= over
        ]
        inwards = [at for _, at in sorted(around, reverse=True)]
        mine = [at for at in inwards if threads[thread][at][0] == WANTED]
        sized = [at for at in inwards if threads[thread][at][3]]
        expected[name] = (thread, mine[0]) if mine else (thread, sized[0]) if sized else None
    file = write(tmp_path_factory.mktemp("nested"), events[::-1] if turned else events)
    got = {}
    for recorded in recorded_operators(file, {WANTED}):
        for name, seconds in recorded.kernels:
            assert seconds == pytest.approx(1e-6 * int(name[1:]))
            got[name] = recorded
    assert got.keys() == expected.keys()
    for name, place in expected.items():
        if place is None:
            assert (got[name].name, got[name].kernels) == ("", ((name, got[name].kernels[0][1]),))
            continue
        operator, begin, _, has_sizes = threads[place[0]][place[1]]
        assert (got[name].name, got[name].begin) == (operator, pytest.approx(1e-6 * begin))
        assert got[name].sizes == ((place,) if has_sizes else ())


@pytest.mark.parametrize("key", ["External id", "external id"])
def test_a_kernel_without_a_launch_is_of_the_operator_with_its_number(tmp_path, key):
    events = [
        event("cpu_op", "aten::add", 0, 10, **{key: 3}),
        event("cpu_op", "aten::mul", 20, 10, **{key: "4"}),
        event("kernel", "a", 100, 5, **{key: 4}),
        event("kernel", "b", 110, 5, **{key: 9}),
        event("kernel", "c", 120, 5),
        event("kernel", "d", 130, 5, **{key: 3}, correlation=77),
        event("kernel", "e", 140, 5, **{key: "no number"}),
    ]
    of_kernel = {
        name: recorded.name
        for recorded in recorded_operators(write(tmp_path, events))
        for name, _ in recorded.kernels
    }
    assert of_kernel == {"a": "aten::mul", "b": "", "c": "", "d": "aten::add", "e": ""}


def test_sizes_types_and_values_are_read_and_what_is_no_size_is_empty(tmp_path):
    args = {
        "Input Dims": [[2, 3], [], "", [[1, 2], [3]], None],
        "Input type": ["float", "Scalar", 7],
        "Concrete Inputs": ["", "1.5"],
    }
    events = [
        event("cpu_op", "aten::add", 0, 10, **args),
        event("cuda_runtime", "launch", 5, 1, correlation=1),
        event("kernel", "k", 100, 5, correlation=1),
    ]
    (recorded,) = recorded_operators(write(tmp_path, events))
    assert recorded.sizes == ((2, 3), (), (), (), ())
    assert recorded.types == ("float", "Scalar", "7")
    assert recorded.values == ("", "1.5")
    older = event("operator", "aten::add", 0, 10, **{"Input dims": [[4]]})
    (recorded,) = recorded_operators(write(tmp_path, [older, *events[1:]]))
    assert recorded.sizes == ((4,),)
    with pytest.raises(TraceError, match="has no kernels; record the device"):
        recorded_operators(write(tmp_path, events[:2]))


def test_iterations_of_an_engine_have_their_batch_and_each_instant_of_kernels_once(tmp_path):
    """Two prompts of 30 tokens on 50 keys, five decodes of two queries; kernels overlap by 3 us."""
    step = "execute_1_context_2(sq30sk50sqsq500sqsk800)_generation_5(sq10sk70sqsq20sqsk140)"
    events = [
        event("user_annotation", step, 0, 50),
        event("user_annotation", "anything", 0, 90),
        event("user_annotation", step.replace("2(sq30", "0(sq0"), 60, 20),
        *(event("cuda_runtime", "l", at, 1, correlation=n) for n, at in enumerate((5, 9, 65), 1)),
        event("kernel", "a", 100, 10, correlation=1),
        event("kernel", "b", 107, 10, correlation=2),
        event("kernel", "c", 120, 4, correlation=3),
    ]
    first, second = engine_steps(recorded_operators(write(tmp_path, events), ranges=ENGINE_STEP))
    assert (first.begin, second.begin) == pytest.approx((0.0, 60e-6))
    assert (first.kernels, second.kernels) == pytest.approx((17e-6, 4e-6))
    assert first.batch == Batch(2, 5, 70.0, 2, 30.0, 800 - 500 / 2)
    assert (second.batch.chunks, second.batch.chunk_tokens) == (0, 0.0)
