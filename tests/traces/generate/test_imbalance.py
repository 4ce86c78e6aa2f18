"""Experts that are asked unlike often: what is sent, how long ranks compute, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.evaluate.generated_steps import representatives
from experiments.scenario.scenario import Scenario
from simulator.imbalance import parse_imbalance
from simulator.support.errors import TraceError, WorkloadError
from simulator.workload import What
from topologies import load_cluster
from traces.generate.generate import generate
from traces.generate.kernel_times import KernelRates
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism, ep_of
from traces.generate.plan import GenerationPlan, files_named, plan_text, read_plan
from traces.generate.run import Serving, Training

MODEL = load_model("mixtral-8x7b").model_copy(update={"layers": 2})
CLUSTER = load_cluster("hgx-h100")
CHIP = KernelRates(peak=989e12, memory_bandwidth=3.35e12)
STEP = Training(micro_batch=1, global_batch=8, sequence=1024)


def plan(said=None, *, run=STEP, **degrees):
    degrees = {"dp": 8, "ep": 4} | degrees
    return GenerationPlan(
        model=MODEL,
        parallelism=Parallelism(**degrees),
        run=run,
        accelerator=CHIP,
        imbalance=None if said is None else parse_imbalance(said),
    )


def histogram(tmp_path, rows, header="layer,expert,tokens"):
    path = tmp_path / "routing.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def calls_of(workload, label):
    views = [workload.call_view(index) for index in range(len(workload.calls))]
    return [view for view in views if view.group.label == label]


@pytest.mark.parametrize("said", ["2.5", "zipf:1.1"])
def test_combine_is_the_transpose_of_dispatch_and_backward_of_forward(said):
    calls = calls_of(generate(plan(said))[0], "ep")
    ranks = calls[0].group.ranks
    own = [call for call in calls if call.group.ranks == ranks]
    assert len(own) == 8  # of 2 layers: there and back, forward and backward
    for first, back in ((0, 6), (2, 4)):
        dispatch, combine = own[first].shares, own[first + 1].shares
        assert dispatch.transposed() == combine != dispatch
        assert (own[back].shares, own[back + 1].shares) == (dispatch, combine)
        assert own[first].size == own[first + 1].size
        assert np.ptp(dispatch.share.sum(axis=1)) < 1e-12  # all send as much


def test_no_byte_is_added_or_lost():
    even = calls_of(generate(plan())[0], "ep")
    uneven = calls_of(generate(plan("3"))[0], "ep")
    for one, other in zip(even, uneven, strict=True):
        assert other.shares.bytes(other.size).sum() == pytest.approx(4 * one.size)
        table = other.shares.bytes(other.size)
        busiest = max(table.sum(axis=0).max(), table.sum(axis=1).max())
        assert busiest == pytest.approx(3 * table.sum() / 4) == pytest.approx(other.size)


def test_a_factor_of_one_is_the_even_step_to_the_last_bit():
    even, one = generate(plan())[0], generate(plan("1"))[0]
    assert np.array_equal(even.calls.size, one.calls.size)
    assert one.calls.spread.max() == -1
    assert np.allclose(even.duration, one.duration, rtol=1e-12)


def test_a_rank_computes_for_the_tokens_that_come_to_it():
    workload, volumes = generate(plan("2.5"))
    even, known = generate(plan())
    experts = [index for index, name in enumerate(workload.names) if name.startswith("experts ")]
    ops = np.isin(workload.name, experts) & (workload.what == What.COMPUTE)
    ep = ep_of(plan().parallelism, workload.rank)
    busiest = workload.flops[ops & (ep == 0)].sum()
    assert busiest == pytest.approx(2.5 * even.flops[ops & (ep == 0)].sum())
    assert workload.flops[ops].sum() == pytest.approx(even.flops[ops].sum())
    assert volumes.flops == pytest.approx(known.flops)
    for column in ("duration", "flops"):
        ours, theirs = getattr(workload, column), getattr(even, column)
        assert np.array_equal(ours[~ops], theirs[~ops], equal_nan=True)


def test_tensor_ranks_gather_the_tokens_of_their_experts():
    degrees = {"tp": 2, "dp": 4, "ep": 2, "sequence_parallel": True}
    uneven, even = (calls_of(generate(plan(said, **degrees))[0], "tp") for said in ("1.5", None))
    ratios = {round(a.size / b.size, 9) for a, b in zip(uneven, even, strict=True)}
    assert ratios == {0.5, 1.0, 1.5}
    assert sum(one.size for one in uneven) == pytest.approx(sum(one.size for one in even))


def test_more_imbalance_takes_longer():
    steps = [
        Scenario(generate(plan(said))[0], CLUSTER).run().makespan
        for said in (None, "1.5", "2", "3", "4")
    ]
    assert steps == sorted(steps)
    assert steps[-1] > 1.5 * steps[0]


def test_representatives_have_the_times_of_all():
    serving = Serving(phase="prefill", batch=1, context=1024)
    whole = plan("zipf:1", run=serving, dp=16)
    step = representatives(whole, CLUSTER)
    assert len(step.workload.ranks) == 8
    assert Scenario(step.workload, CLUSTER).run().makespan == pytest.approx(
        Scenario(generate(whole)[0], CLUSTER).run().makespan, rel=1e-9
    )


def test_a_histogram_is_read_layer_by_layer(tmp_path):
    tokens = ([2] * 8, [9, 1, 1, 1, 1, 1, 1, 1])
    rows = [f"{layer},{expert},{tokens[layer][expert]}" for layer in (0, 1) for expert in range(8)]
    path = histogram(tmp_path, rows)
    calls = calls_of(generate(plan(path))[0], "ep")
    assert [one.shares is None for one in calls[:4]] == [True, True, False, False]
    hot = calls[2].shares.bytes(calls[2].size).sum(axis=0)
    assert hot / hot.sum() == pytest.approx(np.array([10, 2, 2, 2]) / 16)


def test_the_plan_of_a_histogram_reads_back(tmp_path):
    path = histogram(tmp_path, [f"{expert},{expert + 1}" for expert in range(4)], "expert,tokens")
    assert "it lists 4 of 8 experts" in " ".join(plan(path).assumptions)
    path = histogram(tmp_path, [f"{expert},{expert + 1}" for expert in range(8)], "expert,tokens")
    assert "it lists" not in " ".join(plan(path).assumptions)
    for said in (path, "zipf:1.2", "2"):
        whole = replace(plan(said), model=load_model("mixtral-8x7b"))
        (tmp_path / "plan.yaml").write_text(plan_text(whole))
        again = read_plan(tmp_path / "plan.yaml")
        assert str(again.imbalance) == said
        assert again.assumptions == whole.assumptions
    (tmp_path / "plan.yaml").write_text(plan_text(whole).replace("'2'", "routing.csv"))
    assert str(read_plan(tmp_path / "plan.yaml").imbalance) == path
    (tmp_path / "plan.yaml").write_text(plan_text(whole).replace("'2'", "'9'"))
    with pytest.raises(TraceError, match="busiest of 4 ranks receives 4 times"):
        read_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["0,0,5", "0,0,6"], "line 3: expert 0 of layer 0 appears twice"),
        (["0,0,5"], "no rows of layer 1"),
        (["0,0,5", "7,0,1"], "layer 7 of mixtral-8x7b has no experts"),
        (["0,8,5", "1,0,1"], "expert 8, but the model has 8 experts"),
        (["0,0,-5"], "line 2: tokens: '-5' is not an amount"),
        (["0,0,nan"], "line 2: tokens: 'nan'"),
        (["0,x,5"], "line 2: expert: 'x' is not a whole number"),
        (["0,0"], "line 2: 2 of 3 columns"),
        (["0,0,0", "1,1,3"], "tokens: layer 0 has none"),
        ([], "the histogram has no rows"),
    ],
)
def test_a_histogram_that_cannot_be_is_refused(tmp_path, rows, why):
    with pytest.raises(WorkloadError, match=why):
        plan(histogram(tmp_path, rows))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("0.5", "must be 1 or more"),
        ("zipf:-1", "exponent of 0 or more"),
        ("zipf:two", "exponent of 0 or more"),
        ("nowhere.csv", "no such file; write a factor"),
        ("5", "receives 4 times the mean at most"),
        ("inf", "no such file; write a factor"),
    ],
)
def test_an_imbalance_that_cannot_be_is_refused(said, why):
    with pytest.raises(WorkloadError, match=why):
        plan(said)


def test_a_matrix_or_a_model_without_spread_experts_is_refused(tmp_path):
    path = tmp_path / "matrix.csv"
    path.write_text("1,2\n3,4\n")
    with pytest.raises(WorkloadError, match="is for ranks, not for experts"):
        plan(str(path))
    with pytest.raises(WorkloadError, match="ep of 2 or more"):
        plan("2", ep=1)
    with pytest.raises(WorkloadError, match="2 replicas cannot represent all"):
        replace(plan("2"), replicas=2)
    path.write_text("1,2\n3\n")
    with pytest.raises(WorkloadError, match="line 2: 1 columns of a matrix of 2 rows"):
        parse_imbalance(str(path))
    path.write_text("who,what\n3,4\n")
    with pytest.raises(WorkloadError, match="line 1: no column expert"):
        parse_imbalance(str(path))
    path.write_text("no table " * 1000)
    with pytest.raises(WorkloadError) as caught:
        parse_imbalance(str(path))
    assert len(str(caught.value)) < 500  # a file's text does not fill the terminal


def test_a_histogram_that_a_plan_names_is_an_input(tmp_path):
    path = histogram(tmp_path, [f"{expert},{expert + 1}" for expert in range(8)], "expert,tokens")
    whole = replace(plan(path), model=load_model("mixtral-8x7b"))
    (tmp_path / "plan.yaml").write_text(plan_text(whole).replace(path, "routing.csv"))
    assert files_named(tmp_path / "plan.yaml") == [tmp_path / "routing.csv"]
