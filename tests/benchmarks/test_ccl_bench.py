"""CCL-Bench's rows: what its rules say of a step, and which rows are answered."""

import pytest

from benchmarks.astra import Case, Dimension, seconds
from benchmarks.ccl_bench.__main__ import Answer, answers, main, rank_correlation
from benchmarks.ccl_bench.rows import Unanswered, read_rows
from benchmarks.ccl_bench.rules import BETWEEN, ENDPOINT, INSIDE, Recorded, TwoTiers
from experiments.questions.generate import plan_on
from simulator.support.errors import TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.generate.generate import generate
from traces.generate.parallelism import Parallelism
from traces.generate.run import Serving, Training

GIB = 2.0**30
ONE_NODE = TwoTiers(ranks=4, per_node=4, inside=300e9, between=25e9)
TWO_NODES = TwoTiers(ranks=8, per_node=4, inside=300e9, between=25e9)
HEAD = (
    "workload_name,phase,model_family,batch_size,seq_len,input_len,output_len,hardware_model,"
    "total_count,bandwidth_scaleout,bandwidth_scaleup,framework,tp,pp,pp_mb,dp_replicate,"
    "dp_shard,ep,cp,comm_library,avg_step_time,scale_up_bw_utility\n"
)
DECODE = (
    "{name},inference,qwen3-4b,8,1024,1024,128,{gpu},{count},200,2400,vllm,2,1,1,1,1,1,1,{library},"
    "0.04,{utility}\n"
)


def timeline(parallelism, run, model="qwen3-4b"):
    from experiments.scenario.scenario import Scenario

    cluster = load_cluster("perlmutter")
    plan = plan_on(cluster, model=model, parallelism=parallelism, run=run, ignore_memory=True)
    return Scenario(generate(plan)[0], cluster, "flow").run()


DECODED = Serving(phase="decode", batch=4, context=128, framework="vllm")


def test_ranks_of_equal_values_are_their_mean():
    # Closed form with ties: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_a_ring_inside_a_node_takes_the_closed_form():
    size, step = 64e6, INSIDE + ENDPOINT + 64e6 / 4 / (300 * GIB)
    assert ONE_NODE.time("all_reduce", size, (0, 1, 2, 3)) == pytest.approx(6 * step, rel=1e-6)
    assert ONE_NODE.time("all_gather", size, (0, 1, 2, 3)) == pytest.approx(3 * step, rel=1e-6)
    half = INSIDE + ENDPOINT + size / 2 / (300 * GIB)
    assert ONE_NODE.time("all_gather", size, (1, 2)) == pytest.approx(half, rel=1e-6)


def test_a_group_of_like_places_pays_the_switch_alone():
    step = 2 * BETWEEN + ENDPOINT + 32e6 / (25 * GIB)
    assert TWO_NODES.time("all_gather", 64e6, (1, 5)) == pytest.approx(step)
    assert TWO_NODES.doubled().time("all_gather", 64e6, (1, 5)) == pytest.approx(step)


def test_a_collective_of_all_ranks_goes_through_both_dimensions():
    inner = Dimension("Ring", 4, 300 * GIB, INSIDE, "ring")
    outer = Dimension("Switch", 2, 25 * GIB, BETWEEN, "ring")
    case = Case((inner, outer), "all_gather", 64e6, 1, baseline=False, endpoint_delay=ENDPOINT)
    assert TWO_NODES.time("all_gather", 64e6, tuple(range(8))) == pytest.approx(seconds(case))


def test_a_step_without_calls_lasts_as_long_as_it_did():
    alone = timeline(Parallelism(), DECODED)
    assert Recorded(alone).step(ONE_NODE) == pytest.approx(alone.makespan, rel=1e-9)


def test_idle_time_between_kernels_lasts_as_it_did():
    run = Training(micro_batch=1, global_batch=1, sequence=64, framework="deepspeed")
    alone = timeline(Parallelism(), run)
    kernels = alone.workload.what == What.COMPUTE
    assert alone.workload.duration[kernels].sum() < 0.95 * alone.makespan
    last = alone.end[kernels].max()
    assert Recorded(alone).step(ONE_NODE) == pytest.approx(last, rel=1e-9)


def test_a_chain_is_its_kernels_gaps_and_calls():
    step = timeline(Parallelism(tp=2), DECODED)
    work, network = step.workload, TwoTiers(2, 4, 300e9, 25e9)
    calls = sum(
        network.time(kind, size, (0, 1))
        for kind, size in zip(
            [("all_reduce", "all_gather")[one] for one in work.calls.kind],
            work.calls.size.tolist(),
            strict=True,
        )
    )
    kernels = work.duration[(work.what == What.COMPUTE) & (work.rank == 0)].sum()
    assert Recorded(step).step(network) == pytest.approx(kernels + calls, rel=1e-6)


def test_what_computes_beside_calls_follows_them():
    run = Training(micro_batch=1, global_batch=4, sequence=512, framework="fsdp2")
    step = timeline(Parallelism(dp=4, zero=3), run)
    free = TwoTiers(4, 4, 1e18, 1e18)
    chained = Recorded(step).step(ONE_NODE)
    assert chained > Recorded(step).step(free) > 0
    saved = chained - Recorded(step).step(ONE_NODE.doubled())
    assert saved == pytest.approx((chained - Recorded(step).step(free)) / 2, rel=0.01)


def test_calls_that_are_not_seen_do_not_react():
    step = timeline(Parallelism(tp=2), DECODED)
    hidden = Recorded(step, frozenset({"all_reduce", "all_gather"}))
    assert hidden.step(ONE_NODE) == hidden.step(ONE_NODE.doubled())
    assert hidden.step(ONE_NODE) == pytest.approx(step.makespan, rel=1e-6)


def table(tmp_path, *rows):
    path = tmp_path / "published.csv"
    usual = {"gpu": "nvidia_a100", "count": 2, "library": "NCCL", "utility": 0.04}
    path.write_text(HEAD + "".join(DECODE.format(**{**usual, **row}) for row in rows))
    return path


def test_rows_are_answered_or_say_why(tmp_path):
    rows = read_rows(
        table(
            tmp_path,
            {"name": "nccl"},
            {"name": "own", "library": "MSCCL++"},
            {"name": "gloo", "library": "Gloo"},
            {"name": "spark", "gpu": "nvidia_dgx_spark"},
            {"name": "small", "count": 1},
        )
    )
    nccl, own, *refused = answers(rows)
    assert isinstance(nccl, Answer)
    assert isinstance(own, Answer)
    assert 0 < own.by_their_rules < nccl.by_their_rules
    assert nccl.by_ours == own.by_ours
    assert all(isinstance(one, Unanswered) for one in refused)
    words = ("host", "nvidia_dgx_spark", "line 6: tp2 is 2 ranks, total_count 1")
    assert all(word in one.reason for word, one in zip(words, refused, strict=True))


def test_the_program_prints_what_it_found(tmp_path, capsys):
    rows = [{"name": "a", "utility": 0.1}, {"name": "b", "library": "MSCCL++", "utility": 0.02}]
    main(table(tmp_path, *rows))
    said = capsys.readouterr().out
    assert "by their rules: 1.00 (2 rows)" in said
    assert "by ours: none, all are equal (2 rows)" in said
    assert "2 of 2 rows answered" in said


def test_what_is_no_such_table_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match=r"other\.csv, line 1: no column workload_name"):
        read_rows(path)
    with pytest.raises(SystemExit, match="no column"):
        main(path)
