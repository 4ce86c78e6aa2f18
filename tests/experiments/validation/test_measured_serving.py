"""Serving that others measured: rows of tables, logs with their engines' settings, recipes."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.deployments import cache_bytes, memory_use
from experiments.evaluate.serving_clients import Closed
from experiments.evaluate.serving_fleets import Instances
from experiments.evaluate.serving_instances import running_precisions
from experiments.evaluate.serving_runs import serve
from experiments.questions.validation.serving import (
    read_log,
    validate_serving,
    validate_serving_log,
)
from experiments.validation.serving_rows import GROUPS, read_serving
from helpers.places import SHARED
from simulator.support.errors import TwofoldError
from topologies import load_cluster

REFERENCE = SHARED / "reference" / "serving"
needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="measured serving beside the checkout is absent"
)
RUNNER = CliRunner()


@needs_reference
@pytest.mark.slow
def test_measured_rows_are_answered_as_well_as_stated(tmp_path):
    """Every 40th row of those given: most within the stated medians; none without an answer."""
    with (REFERENCE / "measured_serving.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["unusable"]]
    chosen = [row for row in rows if row["mode"] == "agg" and row["speculative"] == "no"][::40]
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, chosen[0].keys())
        writer.writeheader()
        writer.writerows(chosen)
    report = validate_serving(table)
    assert all(row.tpot_s is not None for row in report.rows)
    assert report.errors[0].tpot_median_pct < 14
    assert report.errors[0].ttft_median_pct < 35


@needs_reference
def test_a_vllm_log_is_reproduced():
    """LLMServingSim's log of Llama-3.1-8B on an RTX PRO 6000, whose kernels were measured."""
    folder = REFERENCE / "vllm" / "RTXPRO6000_Llama-3.1-8B"
    report = validate_serving_log(folder, "rtx-pro-6000-pcie-8")
    errors = {(row.metric, row.figure): row.error_pct for row in report.figures}
    assert abs(errors["tpot", "mean"]) < 5
    assert abs(errors["ttft", "mean"]) < 12
    assert abs(errors["e2e", "p99"]) < 8
    assert report.correlations["e2e"] > 0.97


ROW = "id,engine,model,machine,tp,isl,osl,concurrency,weights"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,4,bf16", ""),
        ("a,vllm,llama-3.1-8b,a100_sxm,1,1024,128,4,fp8", ""),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,4,nvfp4", ""),
        ("a,vllm,llama-3.1-8b,h100_sxm,3,1024,128,4,bf16", "tp 3 does not divide 32 heads"),
        ("a,vllm,llama-9,h100_sxm,1,1024,128,4,bf16", "llama-9: no such model"),
        ("a,vlm,llama-3.1-8b,h100_sxm,1,1024,128,4,bf16", "did you mean vllm"),
        ("a,vllm,llama-3.1-8b,z80,1,1024,128,4,bf16", "no cluster of the catalogue"),
        ("a,vllm,llama-3.1-8b,l4,1,1024,128,4,bf16", "gives no memory"),
        ("a,vllm,llama-3.1-8b,rtx_4090,1,1024,128,4,bf16", ""),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,0,4,bf16", "osl: 0 must be at least 1"),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,,bf16", "concurrency: missing"),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,4,int3", "weights: 'int3' is not one of"),
        ("a,vllm,llama-3.1-405b,h100_sxm,1,1024,128,4,bf16", "does not fit"),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,131000,128,4,bf16", "131128 tokens, and llama-3.1-8b"),
    ],
)
def test_a_row_is_answered_or_says_why_not(row, said, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW}\n{row}\n")
    (answer,) = validate_serving(table).rows
    assert (answer.refused == "") == (said == "")
    assert said in answer.refused
    assert (answer.ttft_s is None) == bool(said)
    table.write_text(f"{ROW}\n{row}\n".replace("weights", "wieghts", 1))
    with pytest.raises(TwofoldError, match="line 1: column wieghts: did you mean weights"):
        validate_serving(table)


@pytest.mark.parametrize("column", ["ttft_ms", "tpot_ms"])
def test_no_token_takes_less_than_reading_the_weights(column, tmp_path):
    """The layers of Llama-3.1-8B have 6.98e9 parameters; an H100 reads 3.35e12 B/s."""
    least = 1e3 * (6.98e9 * 2 - 256e6) / 3.35e12
    for given, said in ((1.02 * least, ""), (0.98 * least, f"{column}: "), (1e3 * least, "")):
        table = tmp_path / "rows.csv"
        table.write_text(f"{ROW},{column}\na,vllm,llama-3.1-8b,h100_sxm,1,64,4,1,bf16,{given}\n")
        report = validate_serving(table)
        assert (report.rows[0].refused == "") == (said == "")
        assert said in report.rows[0].refused
        assert (report.document().warning != ()) == (given > 100 * least)


@needs_reference
def test_no_serving_that_was_measured_is_refused_as_too_fast():
    rows = read_serving(REFERENCE / "measured_serving.csv")
    assert not [row.refused for row in rows if "reading the weights" in row.refused]


def test_requests_of_one_token_have_no_time_for_each_token(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW},tpot_ms\na,vllm,llama-3.1-8b,h100_sxm,1,64,1,4,bf16,10\n")
    report = validate_serving(table)
    assert report.rows[0].ttft_s > 0
    assert report.rows[0].tpot_s is report.rows[0].tpot_error_pct is None
    assert report.errors[0].answered == 1


@pytest.mark.parametrize(
    ("cell", "measured"), [("1000", 1.0), ("12.5", 0.0125), ("0", None), ("", None)]
)
def test_a_time_of_a_row_is_in_milliseconds_and_none_where_it_is_nought(tmp_path, cell, measured):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW},tpot_ms\na,vllm,llama-3.1-8b,h100_sxm,1,64,16,4,bf16,{cell}\n")
    (row,) = read_serving(table)
    assert row.measured_tpot == measured


def test_pairs_compare_ratios_of_rows_that_differ_in_one_thing(tmp_path):
    """A factor common to both rows of a pair cancels; a row that differs in two things has none."""
    table = tmp_path / "rows.csv"
    rows = [
        "a,vllm,llama-3.1-8b,h100_sxm,1,512,64,2,bf16",
        "b,vllm,llama-3.1-8b,h200_sxm,1,512,64,2,bf16",
        "c,vllm,llama-3.1-8b,h200_sxm,1,512,64,4,fp8",
    ]
    table.write_text("\n".join([ROW, *rows]))
    times = [row.tpot_s for row in validate_serving(table).rows]
    measured = [3e3 * times[0], 3e3 * times[1] * 1.1, 1.0]
    lines = [f"{row},{value}" for row, value in zip(rows, measured, strict=True)]
    table.write_text("\n".join([f"{ROW},tpot_ms", *lines]))
    (pair,) = validate_serving(table).pairs
    assert (pair.what, pair.pairs) == ("machine", 1)
    assert pair.median_pct == pytest.approx(100 * (1 - 1 / 1.1))


def test_the_command_takes_tables_and_writes_json(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW}\nmine,vllm,llama-3.1-8b,h100_sxm,1,512,64,2,bf16\n")
    done = RUNNER.invoke(app, ["validate", "--serving", str(table), "--output", "json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["id"] == "mine"
    assert 0.002 < row["tpot_s"] < 0.02


def test_weights_that_need_more_than_the_usual_part_get_what_a_script_gives_them(tmp_path):
    """DeepSeek in 8 bits has 169 GB on each of four B200; on two it does not fit at all."""
    rows = "\n".join(
        f"sglang,deepseek-v3-671b,b200_sxm,64,8,2,{tp},fp8_block,inferencex" for tp in (8, 4, 2)
    )
    table = tmp_path / "rows.csv"
    table.write_text(f"engine,model,machine,isl,osl,concurrency,tp,weights,client\n{rows}\n")
    cases = [row.case.deployment for row in read_serving(table)]
    assert [case.engine.memory_fraction for case in cases] == [0.85, 0.95, 0.95]
    assert memory_use(cases[1]).blocks > 0
    with pytest.raises(TwofoldError, match="does not fit"):
        memory_use(cases[2])


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"engine_kwargs": []}, "engine_kwargs: [] is not a table"),
        (
            {"engine_kwargs": {"quantization": "zz"}},
            "quantization 'zz' is not one of fp8, modelopt",
        ),
        ({"engine_kwargs": {"quantization": ["fp8"]}}, "quantization \"['fp8']\" is not one of"),
        ({"engine_kwargs": {"kv_cache_dtype": "fp9"}}, "did you mean fp8?"),
        ({"engine_kwargs": {"dtype": "float32"}}, "dtype 'float32' is not one of auto, bfloat16"),
        ({"engine_kwargs": {"enable_expert_parallel": "no"}}, "enable_expert_parallel 'no' is not"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks: 0 is not 1 to"),
        ({"engine_kwargs": {"kv_cache_memory_bytes": 99}}, "the cache has 0 blocks"),
        (
            {"engine_kwargs": {"decode_context_parallel_size": 3}},
            "dcp 3: with tp 1 a key and value of llama-3.1-8b is on 1 of the ranks",
        ),
        ({"engine_kwargs": {"enforce_eager": True}}, "enforce_eager: True is not modelled"),
        ({"engine_kwargs": {"speculative_config": {"method": "mtp"}}}, "speculative_config: "),
        (
            {"engine_kwargs": {"prefill_context_parallel_size": 2}},
            "cp 2: llama-3.1-8b has grouped attention; vLLM shares prompts of latent attention",
        ),
        ({"engine_kwargs": {"scheduling_policy": "priority"}}, "scheduling_policy: 'priority'"),
        ({"engine_kwargs": {"pipeline_parallel_size": 64}}, "pp 64: llama-3.1-8b has 32 layers"),
        (
            {"engine_kwargs": {"max_model_len": 64}},
            "max_model_len is 64, but a request has 72 tokens",
        ),
        ({"vllm_version": "main"}, "version 'main' of vllm is not a version"),
        ({"sglang_version": "0.5.2"}, "settings of SGLang; only those of vLLM are read"),
        ([], "the settings of an engine must be a table"),
    ],
)
def test_settings_of_an_engine_that_nobody_knows_are_refused(meta, said, tmp_path):
    whole = meta if isinstance(meta, list) else {"model": "meta-llama/Llama-3.1-8B"} | meta
    (tmp_path / "meta.json").write_text(json.dumps(whole))
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    with pytest.raises(TwofoldError, match=re.escape(said)):
        validate_serving_log(tmp_path, "hgx-h100")


def test_settings_of_a_log_that_change_times_are_the_deployments_and_others_are_named(tmp_path):
    """vLLM's context, pipeline and data parallelism, its limits; without chunks a whole prompt."""
    kwargs = {
        "tensor_parallel_size": 8, "decode_context_parallel_size": 4, "block_size": 32,
        "enable_expert_parallel": True, "enable_chunked_prefill": False, "max_model_len": 40960,
        "scheduler_reserve_full_isl": False, "max_cudagraph_capture_size": 64,
        "disable_log_stats": True, "enforce_eager": False, "all2all_backend": "pplx",
    }  # fmt: skip
    meta = {"model": "kimi-k2-1t", "vllm_version": None, "engine_kwargs": kwargs}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    _, logged, unused = read_log(tmp_path, load_cluster("hgx-b200"))
    engine, p = logged.engine, logged.parallelism
    assert (p.tp, p.ep, p.expert_tp, logged.dcp, engine.block) == (8, 8, 1, 4, 128)
    assert (engine.tokens, engine.chunked, engine.captured) == (40960, False, 64)
    assert (engine.reserve, unused) == ("chunk", ("all2all_backend",))
    room = 1000.5 * 32 * 4 * cache_bytes(logged)
    kwargs |= {"decode_context_parallel_size": 1, "kv_cache_memory_bytes": int(room)}
    kwargs |= {"gpu_memory_utilization": 0.01}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    alone = read_log(tmp_path, load_cluster("hgx-b200"))[1]
    assert cache_bytes(alone) == 4 * cache_bytes(logged)
    assert (alone.blocks, alone.engine.memory_fraction) == (1000, 1.0), "at any utilisation"
    meta |= {"num_gpu_blocks": 7}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert read_log(tmp_path, load_cluster("hgx-b200"))[1].blocks == 7


@pytest.mark.parametrize("sizes", [(64,), (64, 4096), (4096, 64, 512)])
def test_requests_of_a_log_are_correlated_where_there_are_two(tmp_path, sizes):
    """Alone and far apart, those with longer prompts take longer: in the order as predicted."""
    (tmp_path / "meta.json").write_text(json.dumps({"model": "meta-llama/Llama-3.1-8B"}))
    times = {64: 0.01, 512: 0.05, 4096: 0.3}
    rows = [
        {"input_toks": size, "output_toks": 8, "queued_ts": 10.0 * number}
        | {"first_token_ts": 10.0 * number + times[size]}
        | {"last_token_ts": 10.0 * number + 2 * times[size]}
        for number, size in enumerate(sizes)
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    correlations = validate_serving_log(tmp_path, "hgx-h100").correlations
    assert {metric: correlations.get(metric) for metric in ("ttft", "e2e")} == dict.fromkeys(
        ("ttft", "e2e"), pytest.approx(1.0) if len(sizes) > 1 else None
    )


@pytest.mark.parametrize(
    ("engine", "version", "machine", "weights", "cache"),
    [
        ("vllm", "0.17.0", "b200_sxm", "fp8_block", "bf16"),
        ("vllm", "v0.11.2", "b200_sxm", "fp8_block", "bf16"),
        ("vllm", "0.19.0", "b200_sxm", "fp8_block", "fp8"),
        ("vllm", "nightly-5b8c30d6", "b200_sxm", "fp8_block", "fp8"),
        ("vllm", "", "b200_sxm", "fp8_block", "fp8"),
        ("vllm", "0.17.0", "b200_sxm", "fp8", "fp8"),
        ("vllm", "0.19.0", "h200_sxm", "fp8_block", "bf16"),
        ("sglang", "0.5.9", "b200_sxm", "fp8_block", "fp8"),
        ("trtllm", "1.2.0", "h200_sxm", "fp8_block", "fp8"),
    ],
)
def test_a_rows_cache_is_as_its_checkpoint_or_the_clients_script_says(
    engine, version, machine, weights, cache, tmp_path
):
    """InferenceX's script of MiniMax-M2.5 (@07e171a3) has no --kv-cache-dtype; that of vLLM 0.19
    (@8eec0d4e) has fp8. Checkpoints with scales of blocks have none of keys and values."""
    table = tmp_path / "rows.csv"
    header = "id,engine,engine_version,model,machine,tp,isl,osl,concurrency,weights,client"
    row = f"a,{engine},{version},minimax-m2.5,{machine},4,1024,64,4,{weights},inferencex"
    table.write_text(f"{header}\n{row}\n")
    (read,) = read_serving(table)
    assert read.case.deployment.precisions.cache == cache


def test_requests_beyond_a_recipes_batch_wait_for_those_before_them(tmp_path):
    """Recipes of 24 and 36 requests on four decoding pools run 4 and 8 on each (srt-slurm,
    gb300-fp8/1k1k/stp/ctx1_gen4_tep8_batch4_eplb0_mtp0_24.yaml); others as many as the engine does.
    On H200 (h200/8k1k/stp/c16_ctx1_gen3_tep8_batch32_eplb0_mtp0.yaml) eight tensor ranks read two
    prompts at a time; a pool of data-parallel ranks has another recipe.

    In a closed loop the rest wait, by Little's law: at any time 16 of 24 decode.
    """
    table = tmp_path / "rows.csv"
    degrees = ("tp", "dp", "ep", "expert_tp")
    of_pools = ",".join(f"{pool}_{way}" for pool in ("prefill", "decode") for way in degrees)
    header = (
        f"id,engine,model,machine,mode,weights,client,prefill_workers,decode_workers,{of_pools}"
    )
    row = "trtllm,deepseek-r1,gb300,disagg,fp8_block,inferencex,1,4,1,4,4,1,8,1,8,1"
    loads = [(1024, 1024, 24), (1024, 8192, 36), (1024, 1024, 23)]
    lines = [f"{n},{row},{i},{o},{c}" for n, (i, o, c) in enumerate(loads)]
    on_h200 = "trtllm,deepseek-r1,h200,disagg,fp8_block,inferencex,1,3"
    ways = ("8,1,8,1", "1,8,8,1")
    lines += [f"{way[0]}h,{on_h200},{way},8,1,8,1,8192,1024,48" for way in ways]
    table.write_text("\n".join([f"{header},isl,osl,concurrency", *lines]))
    cases = [read.case for read in read_serving(table)]
    assert [case.decode.engine.sequences for case in cases] == [4, 8, 2048, 32, 2048]
    assert [case.deployment.engine.sequences for case in cases] == [2048, 2048, 2048, 2, 2048]
    assert [case.deployment.engine.tokens for case in cases[3:]] == [16640, 8304]
    pools = Instances(deployment=cases[0].deployment, decode=cases[0].decode, decode_count=4)
    run = serve(pools, Closed(24, 1024, 256, requests=240))
    decoded = (run.end_to_end - run.ttft).mean()
    assert run.end_to_end[24:].mean() == pytest.approx(24 / (4 * 4) * decoded, rel=0.03)


@pytest.mark.parametrize(
    ("setting", "weights", "cache"),
    [("awq", "int4_wo", "bf16"), ("modelopt_fp4", "int4_wo", "bf16"), ("fp8", "fp8", "fp8")],
)
def test_a_log_has_the_precisions_of_its_settings(setting, weights, cache, tmp_path):
    """Hopper has no products in four bits: they run in 16 on weights of four."""
    kwargs = {"quantization": setting, "kv_cache_dtype": "fp8_e4m3" if cache == "fp8" else None}
    meta = {"model": "meta-llama/Llama-3.1-8B", "engine_kwargs": kwargs}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    _, logged, _ = read_log(tmp_path, load_cluster("hgx-h100"))
    parts = running_precisions(logged)
    assert (parts.attention, parts.network, parts.cache) == (weights, weights, cache)


@pytest.mark.parametrize("most", [8, 32, 128, 512])
def test_rows_are_grouped_by_concurrency_up_to_a_most(most, tmp_path):
    table = tmp_path / "rows.csv"
    rows = (f"a,vllm,llama-3.1-8b,h100_sxm,1,64,1,{count},bf16" for count in (most, most + 1))
    table.write_text("\n".join([ROW, *rows]))
    of_most, of_more = map(GROUPS["concurrency"], read_serving(table))
    assert of_most == f"to {most}"
    assert of_more == ("more" if most == 512 else f"to {4 * most}")


@pytest.mark.parametrize("concurrency", [4, 64, 10**4])
def test_scripts_of_inferencex_allow_as_many_requests_as_their_client_sends(concurrency, tmp_path):
    table = tmp_path / "rows.csv"
    row = f"vllm,llama-3.1-8b,h100_sxm,1,64,1,{concurrency},bf16"
    table.write_text(f"{ROW},client\na,{row},inferencex\nb,{row},other\n")
    scripts, usual = (read.case.deployment.engine for read in read_serving(table))
    allowed = min(concurrency, usual.sequences)
    assert scripts.sequences * scripts.sampling == pytest.approx(allowed * usual.sampling)


def test_scripts_of_inferencex_let_llamas_prompts_wait_on_fewer_than_eight_ranks(tmp_path):
    """Its 70b_fp8_h200_trt_slurm.sh: ratio 0.9 of 16,384 tokens, 20 iterations."""
    table = tmp_path / "rows.csv"
    kinds = {
        "llama-3.1-70b,h200_sxm,2,1024,1024,8,fp8,inferencex": (16384, 20, 14745.6),
        "llama-3.1-70b,h200_sxm,8,1024,1024,8,fp8,inferencex": (16384, 0, 0.0),
        "llama-3.1-70b,h200_sxm,2,1024,8192,8,fp8,inferencex": (16384, 0, 0.0),
        "llama-3.1-70b,h200_sxm,2,1024,1024,8,fp8,other": (8192, 0, 0.0),
        "deepseek-r1,h200_sxm,8,1024,1024,8,fp8_block,inferencex": (8192, 0, 0.0),
    }
    lines = [f"{number},trtllm,{kind}" for number, kind in enumerate(kinds)]
    table.write_text("\n".join([f"{ROW},client", *lines]))
    engines = [read.case.deployment.engine for read in read_serving(table)]
    found = [(each.tokens, each.waits, pytest.approx(each.fills)) for each in engines]
    assert found == list(kinds.values())


def test_a_log_of_an_engine_newer_than_known_says_so(tmp_path):
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    for version, unused in (("0.19.1", ()), ("0.99.0", ("what is new in vLLM since 0.19",))):
        meta = {"model": "meta-llama/Llama-3.1-8B", "vllm_version": version}
        (tmp_path / "meta.json").write_text(json.dumps(meta))
        assert read_log(tmp_path, load_cluster("hgx-h100"))[2] == unused


LLAMA = {
    **{"engine": "vllm", "model": "llama-3.1-8b", "machine": "h100_sxm", "tp": "1"},
    **{"isl": "128", "osl": "16", "concurrency": "2"},
}


def table_of(tmp_path, *rows):
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return table


def test_measurements_that_are_nan_or_zero_are_said_to_be_none(tmp_path):
    cells = [("nan", "9"), ("60", "0"), ("", "9"), ("60", "9")]
    rows = [LLAMA | {"ttft_ms": ttft, "tpot_ms": tpot} for ttft, tpot in cells]
    report = validate_serving(table_of(tmp_path, *rows))
    assert [row.assumed.partition("; ")[2] for row in report.rows] == [
        "ttft_ms nan counts as not measured",
        "tpot_ms 0 counts as not measured",
        "",
        "",
    ]
    assert report.errors[0].answered == 4
    said = report.document().facts["not measured"]
    assert said == "ttft_ms or tpot_ms of 2 rows: NaN and 0 count as no measurement"
    untimed = [row | {"ttft_ms": ""} for row in rows if row["tpot_ms"] == "9"]
    headline = validate_serving(table_of(tmp_path, *untimed)).document().headline
    assert re.search("median error of [0-9.]+ % for TPOT[.]", headline)


def test_responses_bound_the_rows_of_clients_that_stream_every_token(tmp_path):
    """TensorRT-LLM's, of 512 requests; InferenceX's dense models have workers that send them."""
    many = LLAMA | {"engine": "trtllm", "concurrency": "512", "osl": "64"}
    rows = [many | {"client": client} for client in ("other", "inferencex")]
    first, second = (row.case for row in read_serving(table_of(tmp_path, *rows)))
    host = first.deployment.engine.host
    assert host.response > 0 == second.deployment.engine.host.response
    other, _ = validate_serving(table_of(tmp_path, *rows)).rows
    assert other.tpot_s > 0.9 * (host.least + 512 * host.response)


@needs_reference
def test_an_answer_says_that_no_table_has_the_kernels_of_an_accelerator(tmp_path):
    """The log's machine by another name, whose kernels are then carried over from a B200's."""
    here = load_cluster("rtx-pro-6000-pcie-8")
    unknown = here.accelerator.model_copy(update={"name": "Unheard-of 6000"})
    folder = REFERENCE / "vllm" / "RTXPRO6000_Llama-3.1-8B"
    report = validate_serving_log(folder, here.model_copy(update={"accelerator": unknown}))
    assert "no table has kernels on Unheard-of 6000" in report.doubts[0]
    error = next(row.error_pct for row in report.figures if row.metric == "tpot")
    assert abs(error) < 30
    assert not validate_serving_log(folder, here).doubts
