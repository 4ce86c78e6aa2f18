"""A recorded step at another hidden size, batch or tensor degree: kernels scale as their shapes.

The law: a step whose kernels last what the tables say of their shapes becomes, at another size, the
step that would have been recorded there.
"""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from experiments.scenario.language import parse_change
from experiments.scenario.recognised import Factors, lengths_of
from experiments.scenario.scenario import Scenario
from experiments.scenario.sizes import _calls_scaled
from simulator.accelerators import kernel_machines
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import load_cluster
from traces.core.events import RecordedOperator
from traces.generate.kernel_times import Attention, Gemm, Streaming, kernel_times
from traces.generate.kernel_times.own import shape_of
from traces.generate.kernel_times.times import COMPARED, MORE_ROWS, kernel_error
from traces.load import load

HALF, HEAD, VOCABULARY = "c10::BFloat16", 64, 32_000
TIMES = kernel_times(kernel_machines()["h100_sxm"])
CLUSTER = load_cluster("hgx-h100")


def operators(batch, sequence, hidden, degree=1, layers=2):
    """Launches of a forward and a backward pass: layers, the head, and the update of weights."""
    tokens, heads, part = batch * sequence, hidden // HEAD // degree, hidden // degree
    query = (batch, heads, sequence, HEAD)
    ahead, back = [], []
    widths = (hidden, 3 * part), (part, hidden), (hidden, 4 * part), (4 * part, hidden)
    for wide, out in widths:
        ahead.append(("aten::mm", ((tokens, wide), (wide, out)), "gemm"))
        back.append(("aten::mm", ((tokens, out), (out, wide)), "gemm"))
        back.append(("aten::mm", ((out, tokens), (tokens, wide)), "gemm"))
    ahead.append(
        ("aten::_scaled_dot_product_flash_attention", (query,) * 3 + ((), ()), "flash_fwd")
    )
    back.append(("aten::_cudnn_attention_backward", (query,) * 4 + ((),) * 11, "cudnn_bprop"))
    ahead.append(("aten::add", ((batch, sequence, hidden),) * 2, "elementwise"))
    head = [("aten::mm", ((tokens, hidden), (hidden, VOCABULARY // degree)), "gemm")]
    head.append(("aten::_log_softmax", ((tokens, VOCABULARY // degree),), "softmax"))
    return layers * ahead + head + layers * back


def recorded(tmp_path, *size, layers=2, sizes=True, start=1000.0):
    """Write such a step as the profiler does, each kernel as long as tables say (us)."""
    events, names = (
        [{"ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 1, "tid": 1, "ts": 0, "dur": 1}],
        [],
    )
    for number, (name, dims, kernel) in enumerate(operators(*size, layers=layers), 1):
        values = [*[""] * (len(dims) - 1), "True"]  # of attention: whether it is causal
        types = [HALF if each else "" for each in dims]
        shape = shape_of(
            RecordedOperator(name, dims, tuple(types), tuple(values), ((kernel, 0.0),))
        )
        if shape is None:
            shape = Streaming(2.0 * 2 * np.prod(dims[0]))
        lasts = TIMES.time(shape).seconds * 1e6
        args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values} if sizes else {}
        at = {"ph": "X", "pid": 1, "tid": 1, "ts": 20 * number}
        events.append({**at, "cat": "cpu_op", "name": name, "dur": 15, "args": args})
        launch = {
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 20 * number + 5,
            "dur": 5,
        }
        events.append({**at, **launch, "args": {"correlation": number}})
        device = {"ph": "X", "cat": "kernel", "name": f"{kernel}_{number}", "pid": 0, "tid": 7}
        args = {"stream": 7, "device": 0, "correlation": number}
        start = max(start, 20 * number + 12)
        events.append({**device, "ts": start, "dur": lasts, "args": args})
        start += lasts
        names.append(f"{kernel}_{number}")
    file = tmp_path / f"{'-'.join(map(str, size))}.json"
    file.write_text(json.dumps({"traceEvents": events}))
    workload = load(str(file)).workload
    return Scenario(workload, CLUSTER, trace=str(file)), names


def kernels_of(scenario, names):
    """Durations of kernels by name."""
    workload = scenario.workload
    compute = workload.what == What.COMPUTE
    named = zip(workload.name[compute].tolist(), workload.duration[compute].tolist(), strict=True)
    lasting = {workload.names[name]: seconds for name, seconds in named}
    return [lasting[name] for name in names]


@pytest.mark.parametrize(
    ("size", "other", "text"),
    [
        ((2, 1024, 1024), (2, 1024, 4096), "hidden 1024 -> 4096"),
        ((2, 1024, 4096), (2, 1024, 1024), "hidden 4096 -> 1024"),
        ((3, 1024, 2048), (9, 1024, 2048), "batch 3 -> 9"),
        ((8, 640, 1024), (2, 640, 1024), "batch 8 -> 2"),
        ((3, 1024, 2048), (3, 4096, 2048), "sequence 1024 -> 4096"),
    ],
)
def test_a_step_of_tabled_kernels_becomes_the_step_of_the_other_size(tmp_path, size, other, text):
    here, names = recorded(tmp_path, *size)
    there, _ = recorded(tmp_path, *other)
    predicted = kernels_of(parse_change(text).apply(here).scenario, names)
    assert predicted == pytest.approx(kernels_of(there, names), rel=2e-3)
    assert predicted != pytest.approx(kernels_of(here, names), rel=0.1)


def test_a_size_that_waits_for_its_host_says_how_long_it_takes_without(tmp_path):
    """32 launches, 20 us from one to the next."""
    here, _ = recorded(tmp_path, 1, 512, 2048, start=0.0)
    assert "waits for the host" not in parse_change("hidden 2048 -> 4096").apply(here).note
    small = parse_change("hidden 2048 -> 64").apply(here)
    free = parse_change("host x0.000001").apply(small.scenario).scenario.run().makespan
    said = re.search(r"waits for the host, whose code takes .* us: (.*) us without", small.note)
    assert float(said[1]) == pytest.approx(1e6 * free, rel=1e-3)


@pytest.mark.parametrize(
    ("size", "other", "text"),
    [
        ((2, 512, 1024), (2, 512, 2048), "hidden 1024 -> 2048"),
        ((4, 1024, 1024), (4, 1024, 512), "hidden 1024 -> 512"),
    ],
)
def test_the_work_is_right_where_tokens_are_as_many_as_a_width(tmp_path, size, other, text):
    """Which of two equal lengths are tokens is unknown; times depend a little on their order."""
    here, names = recorded(tmp_path, *size)
    there, _ = recorded(tmp_path, *other)
    predicted = kernels_of(parse_change(text).apply(here).scenario, names)
    assert sum(predicted) == pytest.approx(sum(kernels_of(there, names)), rel=0.02)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hidden 768 -> 1024", "the hidden size is not 768: .* in common: 1024"),
        ("batch 4 -> 2", "batch 4: no tensor has the 2048 tokens of a pass divided so"),
        ("tensor 2 -> 4", "no collective calls of 2 tensor-parallel ranks"),
        ("hidden 1024 -> 1024", "changes nothing"),
    ],
)
def test_what_does_not_fit_the_recording_is_refused(tmp_path, text, reason):
    here, _ = recorded(tmp_path, 2, 1024, 1024)
    with pytest.raises(WhatIfError, match=reason):
        parse_change(text).apply(here)


def test_a_recording_without_sizes_is_refused_with_what_to_do(tmp_path):
    here, _ = recorded(tmp_path, 2, 1024, 1024, sizes=False)
    with pytest.raises(WhatIfError, match=r"no matrix product .*record_shapes=True"):
        parse_change("hidden 1024 -> 2048").apply(here)


def products(tokens, hidden, degree=1, layers=3):
    """Products of layers and a head on one rank, forward and of the weights' gradients."""
    wide = ((3 * hidden // degree, 1), (hidden // degree, 1), (4 * hidden // degree, 2))
    counted = {Gemm(tokens, width, hidden): times * layers for width, times in wide}
    counted |= {Gemm(width, hidden, tokens): times * layers for width, times in wide}
    return Counter({**counted, Gemm(tokens, VOCABULARY // degree, hidden): 1})


def test_lengths_are_found_in_products():
    lengths = lengths_of(products(2048, 1024, degree=4))
    assert (lengths.tokens, lengths.hidden) == (2048, 1024)
    assert (lengths.widths, lengths.outside) == ({256, 768, 1024}, {8000})


def test_calls_of_gradients_follow_the_weights_and_others_the_activations():
    """Closed form: 12 h² weights of each layer, and h times the vocabulary outside."""
    builder = WorkloadBuilder(job_ranks=4)
    hidden, layers = 1024, 3
    for label, groups, size in (
        ("tp", ((0, 1), (2, 3)), 2048 * hidden * 2),
        ("dp", ((0, 2), (1, 3)), 4e7),
    ):
        for ranks in groups:
            call = builder.call(CallRow("all_reduce", builder.group(ranks, label), 0, size=size))
            for rank in ranks:
                builder.op(
                    What.COLLECTIVE, rank=rank, lane=label, name=label, duration=0.0, call=call
                )
    lengths = lengths_of(products(2048, hidden, layers=layers))
    factors = Factors(lengths, hidden=2.0, widths=2.0)
    after = _calls_scaled(builder.build(), factors)
    weights = [2 * layers * 12 * h * h + h * VOCABULARY for h in (hidden, 2 * hidden)]
    assert factors.weights == pytest.approx(weights[1] / weights[0])
    by_label = dict(zip(("tp", "tp", "dp", "dp"), after.calls.size, strict=True))
    assert by_label["tp"] == 2048 * 2 * hidden * 2
    assert by_label["dp"] == pytest.approx(4e7 * factors.weights)


@pytest.mark.parametrize(("now", "then"), [(2, 4), (4, 2), (4, 8)])
def test_layers_on_other_tensor_parallel_ranks_are_those_of_their_shapes(tmp_path, now, then):
    """Kernels last what tables say of their share; calls of activations stay as large."""
    here, names = recorded(tmp_path, 3, 640, 3072, now)
    there, _ = recorded(tmp_path, 3, 640, 3072, then)
    of_rank, builder = here.workload, WorkloadBuilder(job_ranks=now)
    for rank in range(now):
        for op in np.flatnonzero(of_rank.what == What.COMPUTE).tolist():
            builder.op(
                What.COMPUTE,
                rank=rank,
                lane="stream 7",
                name=of_rank.names[of_rank.name[op]],
                duration=of_rank.duration[op],
                measured=(of_rank.measured_start[op], of_rank.measured_end[op]),
            )
    call = builder.call(CallRow("all_reduce", builder.group(tuple(range(now)), "tp"), 0, size=12e6))
    for rank in range(now):
        builder.op(What.COLLECTIVE, rank=rank, lane="tp", name="tp", duration=0.0, call=call)
    whole = replace(here, workload=builder.build())
    made = parse_change(f"tensor {now} -> {then}").apply(whole).scenario.whole()
    # Of 4 ranks the network is as wide as the hidden size: which length is divided is unknown
    assert kernels_of(made, names) == pytest.approx(kernels_of(there, names), rel=0.05)
    (group,) = made.workload.groups
    assert (made.ranks, group.ranks) == (then, tuple(range(then)))
    assert made.workload.calls.size.tolist() == [12e6]


def test_more_of_the_same_work_is_known_better_than_wider_products_and_longer_sequences():
    lengths = lengths_of(products(2048, 1024, layers=2))
    product, attention = Gemm(2048, 1024, 1024), Attention(1, 8, 8, 2048, 2048, 64)
    same, other = kernel_error(MORE_ROWS).shared, kernel_error(COMPARED).shared
    more, wider = Factors(lengths, 2.0), Factors(lengths, hidden=2.0, widths=2.0)
    longer = Factors(lengths, 2.0, 2048, 2.0)
    assert same < other / 2
    assert [more.unsure(shape) for shape in (product, attention)] == [same, same]
    assert [wider.unsure(shape) for shape in (product, attention)] == [other, same]
    assert [longer.unsure(shape) for shape in (product, attention)] == [same, other]
