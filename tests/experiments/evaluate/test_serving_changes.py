"""What kernels, logs and recorded iterations of one's own change of a deployment."""

import json
from dataclasses import replace

import pytest

from experiments.evaluate.serving_changes import as_recorded, with_more
from experiments.evaluate.serving_instances import instance_surface
from experiments.evaluate.serving_plan import instances_of, load_of, refuse_log, serving_plan
from experiments.evaluate.serving_runs import serve
from experiments.explore.serving import ServingSession
from helpers.nsys_files import KERNEL, RUNTIME, Writer, pid, simple
from simulator.serving.surface import Batch, iteration_time
from simulator.support.errors import TraceError, TwofoldError
from traces.kineto.operators import EngineStep


def test_kernels_of_ones_own_count_and_a_what_if_changes_them_as_tables_have_it(tmp_path):
    table = tmp_path / "own.csv"
    table.write_text("kernel,shape,seconds\ngemm,m=16 n=6144 k=4096 dtype=bf16,1e-4\n")
    fields = {"model": "llama-3.1-8b", "rate": "1/s"}
    usual, own = (
        instances_of(serving_plan(**fields, **more), "hgx-h100").deployment
        for more in ({}, {"kernels_from": table})
    )
    tokens = [instance_surface(each).tokens[16] for each in (usual, own)]
    assert tokens[1] > tokens[0] + 32 * 5e-5, "a product of each of 32 layers takes 0.1 ms"
    faster = [
        instance_surface(with_more(each, "memory.bandwidth", 2.0)).tokens[16]
        for each in (usual, own)
    ]
    assert faster[1] / tokens[1] == pytest.approx(faster[0] / tokens[0], rel=0.05)


def write_log(folder, run, requests):
    """Write what an engine would log of a run."""
    first = run.arrived + run.ttft
    columns = run.arrived, first, first + run.tpot * (requests.output - 1)
    names = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
    rows = zip(requests.prompt.tolist(), requests.output.tolist(), *columns, strict=True)
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows][::-1]
    (folder / "requests.jsonl").write_text("\n".join(lines))


def test_a_log_gives_the_kernels_and_the_first_token_of_the_machine_it_is_of(tmp_path):
    """Of a machine 1.3 times as slow whose first tokens take 50 ms more: also at another rate."""
    fields = {"model": "llama-3.1-8b", "input": 512, "output": 32, "count": 80}
    plan = serving_plan(**fields, rate="20/s")
    usual = instances_of(plan, "hgx-h100")
    host = usual.deployment.engine.host
    slow = host._replace(kernels=1.3 * host.kernels, first=host.first + 0.05)
    engine = replace(usual.deployment.engine, host=slow)
    machine = replace(usual, deployment=replace(usual.deployment, engine=engine))
    requests = load_of(plan)(0)
    write_log(tmp_path, serve(machine, requests), requests)
    logged = instances_of(serving_plan(**fields, rate="5/s", kernels_from=tmp_path), "hgx-h100")
    found = logged.deployment.engine.host
    assert found.kernels == pytest.approx(slow.kernels, rel=0.01)
    assert found.first == pytest.approx(slow.first, abs=0.002)
    other = load_of(serving_plan(**fields, rate="5/s"))
    predicted, true = (serve(each, other, seed=1).end_to_end.mean() for each in (logged, machine))
    assert predicted == pytest.approx(true, rel=0.01)
    with pytest.raises(TwofoldError, match="give the model, cluster and degrees that it is of"):
        instances_of(serving_plan(model="llama-3.1-405b", tp=8, kernels_from=tmp_path), "hgx-h200")
    with pytest.raises(TwofoldError, match="no --decode"):
        instances_of(serving_plan(**fields, decode="1", kernels_from=tmp_path), "hgx-h100")
    file = tmp_path / "deployment.yaml"
    for log in ("requests.jsonl", "."):  # relative to the file, the log's folder, too
        file.write_text(f"deployment: {{model: llama-3.1-8b, rate: 5/s, kernels_from: {log}}}")
        with pytest.raises(
            TwofoldError, match="a log or recorded steps are of one deployment on one cluster"
        ):
            ServingSession(file, "hgx-h100")


def test_waits_of_a_log_with_fewer_seats_are_no_constant_before_first_tokens(tmp_path):
    fields = {"model": "llama-3.1-8b", "rate": "20/s", "input": 512, "output": 32, "count": 80}
    few = serving_plan(**fields, max_sequences=2)
    requests = load_of(few)(0)
    write_log(tmp_path, serve(instances_of(few, "hgx-h100"), requests), requests)
    same = instances_of(serving_plan(**fields, max_sequences=2, kernels_from=tmp_path), "hgx-h100")
    usual = instances_of(few, "hgx-h100").deployment.engine.host
    assert same.deployment.engine.host == pytest.approx(usual)
    with pytest.raises(TwofoldError, match=r"requests waited[.] Give the engine's limits"):
        instances_of(serving_plan(**fields, kernels_from=tmp_path), "hgx-h100")


def write_steps(file, seconds, period, batch):
    """Write what PyTorch's profiler would record of iterations: annotation, launch and kernel."""
    events = []
    for step in range(3):
        start, thread = 1e6 * step * period, {"ph": "X", "pid": 1, "tid": 1}
        launch = {
            "name": "cudaGraphLaunch",
            "cat": "cuda_runtime",
            "args": {"correlation": step + 1},
        }
        events += [
            {**thread, "name": batch, "cat": "user_annotation", "ts": start, "dur": 90.0},
            {**thread, **launch, "ts": start + 10, "dur": 5.0},
            {**launch, "name": "k", "cat": "kernel", "ph": "X", "pid": 0, "tid": 7}
            | {"ts": start + 20, "dur": 1e6 * seconds},
        ]
    file.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))


def write_export(file, seconds, period, batch):
    """Write what Nsight Systems would export of iterations on two ranks, of a process each."""
    out, number = Writer(), 0
    for process in (1, 2):
        thread = pid(process) + 9
        for step in range(3):
            number, start = number + 1, round(1e9 * (1 + step * period))
            at = {"correlationId": number, "globalPid": pid(process)}
            out.range(start, start + 90_000, thread, batch)
            call = {"correlationId": number, "nameId": out.string("cudaGraphLaunch_v10000")}
            out.add(RUNTIME, start=start + 10_000, end=start + 15_000, globalTid=thread, **call)
            names = {"demangledName": out.string("k"), "shortName": out.string("k")}
            begun = start + 20_000  # a second kernel, of another stream, ends with the first
            for stream, begin in ((7, begun), (8, begun + 5_000)):
                where = {"deviceId": process, "streamId": stream}
                out.add(
                    KERNEL, start=begin, end=begun + round(1e9 * seconds), **where, **at, **names
                )
    out.write(file)


@pytest.mark.parametrize("write", [write_steps, write_export])
@pytest.mark.parametrize(
    ("annotated", "batch"),
    [
        ("context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8193", Batch(1, 16, 8193.0, 0, 0.0, 0.0)),
        # Of TraceLens's vllm_piecewise_prefilldecode.
        (
            "context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489",
            Batch(1, 37, 34489.0, 9, 8155.0, 7671310 - 7475785 / 2),
        ),
    ],
)
def test_recorded_iterations_give_the_kernels_and_the_host_of_the_machine(
    annotated, batch, write, tmp_path
):
    """Of one whose kernels take 1.3 times as long, with 0.7 ms of host in each iteration."""
    fields, file = {"model": "llama-3.1-8b", "rate": "1/s"}, tmp_path / "steps.json"
    usual = instances_of(serving_plan(**fields), "hgx-h100").deployment
    seconds = 1.3 * iteration_time(instance_surface(usual), batch)
    write(file, seconds, seconds + 7e-4, f"execute_64_{annotated}sqsq9sqsk9)")
    recorded = instances_of(serving_plan(**fields, kernels_from=file), "hgx-h100").deployment
    assert recorded.engine.host.kernels == pytest.approx(1.3, rel=1e-3)
    assert recorded.engine.host.step == pytest.approx(7e-4, rel=1e-3)
    with pytest.raises(TwofoldError, match="no --decode"):
        instances_of(serving_plan(**fields, decode="1", kernels_from=file), "hgx-h100")
    with pytest.raises(TwofoldError, match="recorded steps are of one deployment"):
        refuse_log(serving_plan(**fields, kernels_from=file))


def test_an_export_without_iterations_says_how_to_record_them(tmp_path):
    simple(tmp_path / "steps.sqlite")
    for path in (tmp_path, tmp_path / "steps.sqlite"):
        with pytest.raises(TwofoldError, match="detailed_trace_annotation true"):
            instances_of(serving_plan(model="llama-3.1-8b", kernels_from=path), "hgx-h100")


@pytest.mark.parametrize("factor", [0.34, 0.5, 1.0, 2.9])
def test_iterations_of_profiles_give_the_factor_of_kernels_and_the_host_between_them(factor):
    """All kernels as many times as long, and the median of what passes between two of them."""
    made = instances_of(serving_plan(model="llama-3.1-8b", rate="1/s"), "hgx-h100").deployment
    surface = instance_surface(made)
    profiles = []
    for waits in ((1e-3, 2e-3, 9e-3), (4e-3, 5e-3)):
        begin, steps = 7.0, []
        for number, wait in enumerate((*waits, 0.0)):
            batch = Batch(number, 0, 0.0, 8, 100.0 * (1 + number), 50.0)
            kernels = factor * iteration_time(surface, batch)
            steps.append(EngineStep(begin, kernels, batch))
            begin += kernels + wait
        profiles.append(steps)
    host = as_recorded(made, profiles, "mine").engine.host
    assert host.kernels == pytest.approx(factor)
    assert host.step == pytest.approx(4e-3)
    alone = as_recorded(made, [profiles[0][:2]], "mine").engine.host
    assert alone.step == made.engine.host.step, "one gap may be anything"
    for off in (0.3 / factor, 3.1 / factor):
        far = [[step._replace(kernels=off * step.kernels) for step in each] for each in profiles]
        with pytest.raises(TraceError, match="mine: its kernels take"):
            as_recorded(made, far, "mine")
