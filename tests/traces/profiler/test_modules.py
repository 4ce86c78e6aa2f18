"""Ops are named by the modules and ranges that enclose their launches; nothing else changes."""

import numpy as np
import pytest

from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from helpers.experiments_jobs import write_job
from helpers.places import SHARED
from simulator.folding.fold import fold
from simulator.workload import LAUNCH_DELAY, What
from topologies import load_cluster
from traces.core.loaded import Options
from traces.load import load
from traces.profiler.ranges import _Range, _Thread
from traces.xla.hlo import parse_instruction


def span(cat, name, ts, dur, **args):
    times = {"ts": 1e6 + ts, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": 1, **times, "args": args}


def arrow(phase, ts, number):
    place = {"pid": 100, "tid": 1, "ts": 1e6 + ts, "id": number}
    return {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e", **place}


def marked(_rank, made):
    """Launches of the job are at 30, 50, 70, 90, 110 and 130 us, of 8 us each."""
    return [
        *made,
        span("user_annotation", "## forward ##", 25, 60),
        span("python_function", "nn.Module: Model_0", 26, 40),
        span("python_function", "nn.Module: Linear_0", 27, 20),
        span("python_function", "model.py(7): forward", 27, 5),
        span("cpu_op", "AddmmBackward0", 105, 15),
        arrow("s", 28, 4),
        arrow("f", 105, 4),
        arrow("f", 33, 5),
    ]


EXPECTED = ["forward/Model_0/Linear_0", "forward/Model_0", "forward", ""]
EXPECTED += ["forward/Model_0/Linear_0 (backward)", ""]


def names(workload, ops):
    return [workload.modules[at] if at >= 0 else "" for at in workload.module[ops].tolist()]


def test_kernels_belong_to_what_encloses_their_launch(tmp_path):
    workload = load(write_job(tmp_path / "job", 2, marked)).workload
    for rank in workload.ranks:
        device = workload.ops_of(rank)[workload.what[workload.ops_of(rank)] != What.HOST]
        own = device[workload.own[device]]
        order = own[np.argsort(workload.measured_start[own])]
        assert names(workload, order) == EXPECTED
        (delay,) = np.setdiff1d(device, own)
        assert workload.names[workload.name[delay]] == LAUNCH_DELAY
        assert names(workload, [delay]) == EXPECTED[:1]


def test_names_change_nothing_else(tmp_path):
    plain = load(write_job(tmp_path / "plain", 2)).workload
    named = load(
        write_job(tmp_path / "named", 2, lambda rank, made: marked(rank, made)[: len(made) + 4])
    ).workload
    assert plain.module is None
    assert plain.modules == ()
    assert np.array_equal(plain.measured_start, named.measured_start)
    assert np.array_equal(plain.duration, named.duration)
    assert np.array_equal(plain.edges.target, named.edges.target)


def test_damaged_names_are_passed_over(tmp_path):
    def damaged(_rank, made):
        wrong = span("python_function", "nn.Module: Model_0", 26, 40)
        return [*made, {**wrong, "ts": "soon"}, {**arrow("s", 28, 4), "id": [4]}]

    assert load(write_job(tmp_path / "job", 2, damaged)).workload.module is None


def test_copies_of_ranks_have_the_modules_of_their_models(tmp_path):
    job = write_job(tmp_path / "job", 2, marked)
    (job / "rank1.json").unlink()
    workload = load(job, options=Options(replicate=True)).workload
    one, other = (names(workload, workload.ops_of(rank)) for rank in (0, 1))
    assert one == other
    assert "forward" in one


@pytest.mark.parametrize("text", ["overlap none", "overlap full", "*gemm* drop", "calls drop"])
def test_edits_keep_modules(tmp_path, text):
    workload = load(write_job(tmp_path / "job", 2, marked)).workload
    changed = parse_change(text).apply(Scenario(workload, load_cluster("dgx-a100"))).scenario
    ops = np.arange(len(workload))
    assert names(changed.workload, ops) == names(workload, ops)
    assert len(changed.workload.module) == len(changed.workload)


def test_folding_keeps_modules(tmp_path):
    workload = load(write_job(tmp_path / "job", 4, marked)).workload
    scenario = Scenario(workload, load_cluster("dgx-a100"))
    folded = fold(workload, scenario.site.costs, lambda label: "")
    part = folded.workload
    assert names(part, np.arange(len(part))) == names(workload, folded.kept)


def test_ranges_nest_by_time():
    thread = _Thread.of(
        [_Range(0, 10, "a"), _Range(1, 4, "b"), _Range(1, 2, "c"), _Range(5, 6, "d")]
    )
    assert [thread.at(time) for time in (0.5, 1.5, 3, 4.5, 5.5, 10, 11)] == [
        *("a", "a/b/c", "a/b", "a", "a/d", "a", "")
    ]


def test_xla_scopes_are_read_from_text():
    text = (
        '%dot.1 = f32[8]{0} dot(f32[8]{0} %p), metadata={op_type="dot_general" '
        'op_name="jit(step)/jvp(Mlp)/layer_0/dot_general" source_file="a.py"}'
    )
    assert parse_instruction(text).scope == "jit(step)/jvp(Mlp)/layer_0"
    assert parse_instruction("%add = f32[8]{0} add(f32[8]{0} %p)").scope == ""


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize(
    ("trace", "module"),
    [
        ("kineto/mi300x_8gpu_resnet_ddp_rank0.json.gz", "BasicBlock_7/Conv2d_19 (backward)"),
        ("nsys-jax", "lm/transformer/x_layers_9/ff_layer/layer_norm"),
    ],
)
def test_real_traces_name_their_layers(trace, module):
    workload = load(SHARED / "traces" / trace).workload
    assert any(name.endswith(module) for name in workload.modules)
