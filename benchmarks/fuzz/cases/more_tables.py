"""Models, plans, logs, requests, schedules, rows of validation: values of no sense in each."""

import json
from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import (
    CALLS,
    CLUSTER,
    CONFIG,
    KERNELS,
    MODEL,
    MSCCL,
    NCCL_LOG,
    OSU,
    PAIRS,
    PLAN,
    REQUESTS,
    SAMPLE,
    SCHEDULE,
    SERVED,
    STEPS,
    changed,
)

TRAIN = ("--tp", "2", "--dp", "2", "--sequence", "512", "--global-batch", "4")


def more_tables() -> Iterator[Case]:
    """Yield them all."""
    yield from _models()
    yield from _logs()
    yield from _requests()
    yield from _schedules()
    yield from _validation()


def _models() -> Iterator[Case]:
    generate = ("generate", "m.yaml", *CLUSTER, *TRAIN)
    for old, new in (
        ("layers: 16", "layers: 0"),
        ("layers: 16", "layers: 1000000000"),
        ("layers: 16", "layers: 16.5"),
        ("hidden: 2048", "hidden: 1"),
        ("hidden: 2048", "hidden: 2047"),
        ("hidden: 2048", "hidden: 1000000000000"),
        ("hidden: 2048", "hidden: 9223372036854775808"),
        ("vocabulary: 32000", "vocabulary: 0"),
        ("vocabulary: 32000", "vocabulary: 1000000000000000000"),
        ("heads: 16,", "heads: 0,"),
        ("heads: 16,", "heads: 17,"),
        ("heads: 16,", "heads: 1000000000,"),
        ("kv_heads: 4", "kv_heads: 5"),
        ("kv_heads: 4", "kv_heads: 32"),
        ("head: 128", "head: 1000000000000"),
        ("ffn: 5632", "ffn: -1"),
        ("ffn: 5632", "ffn: 1e3"),
        ("gated: true", "gated: 7"),
        ("name: own-1b", "name: ''"),
        ("kind: grouped", "kind: no_such"),
        ("ffn: 5632", "ffn: 5632\nexperts: {count: 1000000000, active: 2}"),
        ("ffn: 5632", "ffn: 5632\nexperts: {count: 8, active: 9, ffn: 64}"),
        ("ffn: 5632", "ffn: 5632\nwindow: 0"),
        ("ffn: 5632", "ffn: 5632\nlongest: 1"),
        ("ffn: 5632", "ffn: 5632\nno_such: 1"),
    ):
        data = changed(MODEL, old, new)
        yield Case(f"model: {new}", generate, {"m.yaml": data})
        yield Case(
            f"model: {new}",
            ("serving", "m.yaml", "-c", "hgx-h100", "--rate", "1/s", "--requests-count", "20"),
            {"m.yaml": data},
        )
    config = json.loads(CONFIG)
    for field, value in (
        ("hidden_size", 0),
        ("hidden_size", "2048"),
        ("hidden_size", 2048.0),
        ("hidden_size", True),
        ("hidden_size", [2048]),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -4),
        ("num_hidden_layers", None),
        ("num_attention_heads", 0),
        ("num_attention_heads", 3),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 7),
        ("vocab_size", 10**30),
        ("intermediate_size", -1),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", 1),
        ("model_type", "no_such"),
        ("model_type", None),
        ("model_type", ["llama"]),
        ("model_type", "mixtral"),
        ("model_type", "deepseek_v3"),
        ("model_type", "gpt_oss"),
        ("model_type", "qwen3_next"),
        ("model_type", "t5"),
        ("quantization_config", {"bits": -1, "quant_method": "x" * 9000}),
        ("rope_scaling", [1]),
        ("sliding_window", -5),
        ("head_dim", 0),
        ("head_dim", 10**12),
        ("text_config", {"hidden_size": 1}),
        ("num_local_experts", 10**9),
        ("layer_types", ["x"] * 9),
    ):
        for words in (
            ("generate", "config.json", *CLUSTER, *TRAIN),
            ("serving", "config.json", "-c", "hgx-h100", "--rate", "1/s", "--requests-count", "20"),
        ):
            data = json.dumps({**config, field: value}).encode()
            yield Case(f"config.json: {field} {str(value)[:20]}", words, {"config.json": data})
    for old, new in (
        ("tp: 2", "tp: 0"),
        ("tp: 2", "tp: 1000000000"),
        ("tp: 2", "tp: 3"),
        ("dp: 2", "dp: 5000000000"),
        ("micro_batch: 1", "micro_batch: 3"),
        ("global_batch: 8", "global_batch: 7"),
        ("global_batch: 8", "global_batch: 1000000000000"),
        ("sequence: 1024", "sequence: 1000000000000"),
        ("sequence: 1024", "sequence: 0"),
        ("sequence: 1024", "sequence: 1024, no_such: 1"),
        ("peak: 989 TFLOP/s", "peak: 1 FLOP/s"),
        ("peak: 989 TFLOP/s", "peak: 1e300 FLOP/s"),
        ("3.35 TB/s", "1e-300 B/s"),
        ("model: llama-3.1-8b", "model: ../../../etc/passwd"),
        ("model: llama-3.1-8b", "model: no-such"),
        ("model: llama-3.1-8b", "model: {a: 1}"),
        ("model: llama-3.1-8b", "model: plan.yaml"),
        ("training: {", "training: {recompute: no, "),
        ("training: {", "training: {framework: zzz, "),
        ("training: {", "training: {launch: 1e9 s, "),
        ("training: {", "training: {compute_efficiency: 7, "),
    ):
        data = changed(PLAN, old, new)
        for words in (("utility", "plan.yaml", *CLUSTER), ("generate", "plan.yaml", *CLUSTER)):
            yield Case(f"plan: {new[:40]}", words, {"plan.yaml": data})
    for rule in (
        [{"pattern": "x", "kind": "no_such"}],
        [{"pattern": "", "kind": "all_reduce"}],
        [{"pattern": "^", "kind": "all_reduce"}],
        [{"pattern": 5, "kind": "all_reduce"}],
        [{"kind": "all_reduce"}],
        [{"pattern": "x", "kind": "all_reduce", "more": 1}],
        [{"pattern": "x", "kind": "all_reduce"}] * 5000,
        {"pattern": "x"},
        "text",
        [[["x"]]],
        [{"pattern": "(?i:x)(?<=y)(?(1)a|b)", "kind": "all_reduce"}],
        [{"pattern": "(?P<n>a)(?P=n)", "kind": "all_reduce"}],
        [{"pattern": "\\p{L}", "kind": "all_reduce"}],
        [{"pattern": "a{1000000000}", "kind": "all_reduce"}],
        [{"pattern": "[" + "a-z" * 9000 + "]", "kind": "all_reduce"}],
        [{"pattern": "|".join(["a"] * 50_000), "kind": "all_reduce"}],
        [{"pattern": "(?s:.)*", "kind": "all_reduce"}],
        [{"pattern": "(?x) a # b", "kind": "all_reduce"}],
    ):
        yield Case(
            f"--kernels: {str(rule)[:50]}",
            ("utility", SAMPLE, *CLUSTER, "--kernels", "k.yaml"),
            {"k.yaml": json.dumps(rule).encode()},
        )
    yield Case(
        "--kernels: as is",
        ("utility", SAMPLE, *CLUSTER, "--kernels", "k.yaml"),
        {"k.yaml": KERNELS},
    )


def _logs() -> Iterator[Case]:
    perftest = (
        b" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
        b" 65536      1000             11500.00            11490.00          0.183840\n"
        b" 1048576    1000             11600.00            11590.00          0.011590\n"
    )
    calibrate = ("calibrate", "--logs", "a.log", *CLUSTER, "--ranks", "8")
    for label, data in {
        "nccl: time 0": NCCL_LOG.replace(b"30.10", b" 0.00"),
        "nccl: time -1": NCCL_LOG.replace(b"30.10", b"-1.00"),
        "nccl: time nan": NCCL_LOG.replace(b"30.10", b"  nan"),
        "nccl: time inf": NCCL_LOG.replace(b"30.10", b"  inf"),
        "nccl: size -1": NCCL_LOG.replace(b" 1048576 ", b"      -1 "),
        "nccl: size 0": NCCL_LOG.replace(b" 1048576 ", b"       0 "),
        "nccl: wrong results": NCCL_LOG.replace(b"34.84      0", b"34.84    999"),
        "nccl: another type": NCCL_LOG.replace(b"float", b"zzz  "),
        "nccl: busbw that is not": NCCL_LOG.replace(b"34.84   34.84", b"34.84 9999.99"),
        "nccl: a rank twice": NCCL_LOG.replace(b"Rank  1", b"Rank  0"),
        "nccl: a rank left out": NCCL_LOG.replace(b"Rank  1", b"Rank  7"),
        "nccl: no device": b"\n".join(
            line for line in NCCL_LOG.splitlines() if b"Rank" not in line
        ),
        "nccl: nThread 0": NCCL_LOG.replace(b"nThread 1 nGpus 2", b"nThread 0 nGpus 0"),
        "nccl: nGpus 1e9": NCCL_LOG.replace(b"nGpus 2", b"nGpus 1000000000"),
        "nccl: nGpus of digits": NCCL_LOG.replace(b"nGpus 2", b"nGpus " + b"9" * 5000),
        "nccl: two tables": NCCL_LOG + NCCL_LOG,
        "nccl: a row of 3,000 cells": NCCL_LOG.replace(b" 30.10", b" 30.10" * 3000),
        "nccl: as JSON": b'{"nccl-tests": {"version": 1}, "results": [{"size": "x"}]}',
        "nccl: JSON nested": b'{"config": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        "osu: size 0": OSU.replace(b"1024 ", b"0 "),
        "osu: size -1": OSU.replace(b"1024 ", b"-1 "),
        "osu: time 0": OSU.replace(b"12.00", b"0.00"),
        "osu: time -1": OSU.replace(b"12.00", b"-12.00"),
        "osu: time nan": OSU.replace(b"12.00", b"nan"),
        "osu: another test": OSU.replace(b"Allreduce", b"Zzz"),
        "osu: sizes fall": OSU.replace(b"16777216", b"2"),
        "osu: a size twice": OSU.replace(b"16777216", b"1024"),
        "osu: two heads": OSU + OSU,
        "perftest: sound": perftest,
        "perftest: rate": perftest.replace(b"0.183840", b"9.9"),
        "perftest: 0": perftest.replace(b"11490.00", b"0.00"),
        "perftest: -1": perftest.replace(b"11490.00", b"-1.00"),
        "perftest: nan": perftest.replace(b"11490.00", b"nan"),
        "perftest: iterations 0": perftest.replace(b" 1000 ", b" 0 "),
        "perftest: unit": perftest.replace(b"MB/sec", b"PB/sec"),
        "perftest: a superscript": perftest.replace(b"65536", "²".encode()),
        "perftest: size of digits": perftest.replace(b"65536", b"9" * 5000),
        "perftest: brackets": perftest.replace(b"[MB/sec]", b"[" * 20_000 + b"]"),
        "perftest: head": b"#bytes #iterations " + b"a " * 200_000 + b"[MB/sec]\n",
        "table: kind of nobody": CALLS.replace(b"all_reduce,8,1024", b"zzz,8,1024"),
        "table: ranks 0": CALLS.replace(b",8,1024", b",0,1024"),
        "table: ranks 1": CALLS.replace(b",8,1024", b",1,1024"),
        "table: ranks 1e9": CALLS.replace(b",8,1024", b",1000000000,1024"),
        "table: ranks 8.5": CALLS.replace(b",8,1024", b",8.5,1024"),
        "table: time 0": CALLS.replace(b",20\n", b",0\n"),
        "table: time 1e-30": CALLS.replace(b",20\n", b",1e-30\n"),
        "table: time blank": CALLS.replace(b",20\n", b",\n"),
        "table: size blank": CALLS.replace(b"1024", b""),
        "table: size 1 KiB": CALLS.replace(b"1024", b"1 KiB"),
        "table: semicolons": CALLS.replace(b",", b";"),
        "table: UTF-16": CALLS.decode().encode("utf-16"),
        "table: a column of no name": CALLS.replace(b"time_us", b""),
        "table: units of no sense": CALLS.replace(b"time_us", b"time_parsecs"),
        "table: a formula": CALLS.replace(b",20\n", b",=1+1\n"),
    }.items():
        for words in (calibrate, ("validate", "a.log", *CLUSTER)):
            name = "a.csv" if label.startswith("table") else "a.log"
            named = tuple(name if word == "a.log" else word for word in words)
            yield Case(f"log: {label}", named, {name: data})
        yield Case(
            f"log: {label}",
            (
                "collective",
                "all_reduce",
                *CLUSTER,
                "-n",
                "8",
                "--sizes",
                "1MiB",
                "--baseline",
                "a.csv",
            ),
            {"a.csv": data},
        )


def _requests() -> Iterator[Case]:
    served = ("serving", "llama-3.1-8b", "-c", "hgx-h100", "--requests", "r.csv", "--seeds", "1")
    azure = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0,39,9\n"
    burst = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,c\n6,ChatGPT,40,0,40,c\n"
    mooncake = b'{"timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [1]}\n{"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    bench = {
        "duration": 1.0,
        "completed": 2,
        "input_lens": [10, 20],
        "output_lens": [5, 6],
        "ttfts": [0.1, 0.1],
        "itls": [[0.01] * 4, [0.01] * 5],
        "start_times": [0.0, 0.5],
    }
    for label, data in {
        "prompt 0": REQUESTS.replace(b",100,", b",0,"),
        "prompt -1": REQUESTS.replace(b",100,", b",-1,"),
        "prompt 1e9": REQUESTS.replace(b",100,", b",1000000000,"),
        "prompt 1.5": REQUESTS.replace(b",100,", b",1.5,"),
        "prompt 2**63": REQUESTS.replace(b",100,", b",9223372036854775808,"),
        "output 0": REQUESTS.replace(b",100,10", b",100,0"),
        "output 1e9": REQUESTS.replace(b",100,10", b",100,1000000000"),
        "output 1e6": REQUESTS.replace(b",100,10", b",100,1000000"),
        "time -1": REQUESTS.replace(b"0.5,", b"-1,"),
        "time 1e9": REQUESTS.replace(b"1.0,", b"1000000000,"),
        "time 1e300": REQUESTS.replace(b"1.0,", b"1e300,"),
        "time nan": REQUESTS.replace(b"0.5,", b"nan,"),
        "all at once": REQUESTS.splitlines(keepends=True)[0] + b"0.0,1000,100\n" * 3000,
        "of one token": REQUESTS.splitlines(keepends=True)[0] + b"0.0,1,1\n" * 20_000,
        "20,000 long": REQUESTS.splitlines(keepends=True)[0] + b"0.0,100000,1000\n" * 20_000,
        "one": b"".join(REQUESTS.splitlines(keepends=True)[:2]),
        "Azure": azure,
        "Azure: date of no sense": azure.replace(b"2023-11-16 18:17:04.0", b"2023-99-99 18:17:04"),
        "Azure: year 9999": azure.replace(b"2023-11-16 18:17:04.0", b"9999-12-31 23:59:59.9999999"),
        "Azure: zones": azure.replace(b"18:17:04.0", b"18:17:04.0+99:99"),
        "Azure: one zone": azure.replace(b"18:17:04.0", b"18:17:04.0+00:00"),
        "BurstGPT": burst,
        "BurstGPT: no token": burst.replace(b"472,18", b"0,0"),
        "Mooncake": mooncake,
        "Mooncake: hashes of text": mooncake.replace(b"[1]", b'["x"]'),
        "Mooncake: too many hashes": mooncake.replace(b"[1]", b"[" + b"1," * 9000 + b"1]"),
        "Mooncake: hashes 2**70": mooncake.replace(b"[1]", b"[1180591620717411303424]"),
        "Mooncake: hashes a number": mooncake.replace(b"[1]", b"7"),
        "Mooncake: hash_tokens 0": mooncake.replace(b'"hash_ids"', b'"hash_tokens": 0, "hash_ids"'),
        "Mooncake: hash_tokens 1e30": mooncake.replace(
            b'"hash_ids"', b'"hash_tokens": 1e30, "hash_ids"'
        ),
        "Mooncake: length a list": mooncake.replace(b"100", b"[100]"),
        "Mooncake: length true": mooncake.replace(b"100", b"true"),
        "Mooncake: a list in a line": mooncake + b"[1, 2]\n",
        "Mooncake: nested": mooncake + b'{"a": ' * 3000 + b"\n",
        "benchmark": json.dumps(bench).encode(),
        "benchmark: lengths differ": json.dumps({**bench, "output_lens": [5]}).encode(),
        "benchmark: nan": json.dumps({**bench, "ttfts": [float("nan"), 0.1]}).encode(),
        "benchmark: start text": json.dumps({**bench, "start_times": ["a", "b"]}).encode(),
        "benchmark: lens -1": json.dumps({**bench, "input_lens": [-10, 20]}).encode(),
        "benchmark: lens nested": json.dumps({**bench, "input_lens": [[10], 20]}).encode(),
        "benchmark: no request": json.dumps(
            {**bench, "input_lens": [], "output_lens": []}
        ).encode(),
    }.items():
        yield Case(f"requests: {label}", served, {"r.csv": data})
        yield Case(
            f"requests: {label}",
            (*served, "--instances", "2", "--router", "prefix", "--prefix-cache"),
            {"r.csv": data},
        )
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "engine_kwargs": {"tensor_parallel_size": 1},
    }
    line = {
        "request_id": "a",
        "input_toks": 100,
        "output_toks": 10,
        "arrival_time": 0.0,
        "first_token_ts": 0.1,
        "last_token_ts": 0.5,
    }
    log = ("validate", "--serving-log", "log", "-c", "hgx-h100")
    for label, change in {
        "": {},
        "input -1": {"input_toks": -1},
        "input 1e18": {"input_toks": 10**18},
        "input text": {"input_toks": "x"},
        "first before arrival": {"first_token_ts": -5.0},
        "last before first": {"last_token_ts": 0.0},
        "first nan": {"first_token_ts": float("nan")},
        "first 1e300": {"first_token_ts": 1e300},
        "arrival null": {"arrival_time": None},
        "id a list": {"request_id": [1]},
        "first text": {"first_token_ts": "x"},
        "first a list": {"first_token_ts": [1]},
    }.items():
        rows = "\n".join(
            json.dumps({**line, "request_id": str(n), **(change if n == 1 else {})})
            for n in range(3)
        )
        yield Case(
            f"serving log: {label}",
            log,
            {"log/meta.json": json.dumps(meta).encode(), "log/requests.jsonl": rows.encode()},
        )
    for label, change in {
        "model of nobody": {"model": "zzz"},
        "model a path": {"model": "/etc/passwd"},
        "version of no sense": {"vllm_version": "x"},
        "tp 0": {"engine_kwargs": {"tensor_parallel_size": 0}},
        "tp text": {"engine_kwargs": {"tensor_parallel_size": "x"}},
        "tp 1e9": {"engine_kwargs": {"tensor_parallel_size": 10**9}},
        "sequences -1": {"engine_kwargs": {"max_num_seqs": -1}},
        "batched 0": {"engine_kwargs": {"max_num_batched_tokens": 0}},
        "utilization 5": {"engine_kwargs": {"gpu_memory_utilization": 5}},
        "kwargs a list": {"engine_kwargs": [1]},
        "blocks 2**62": {"engine_kwargs": {"num_gpu_blocks_override": 2**62}},
    }.items():
        yield Case(
            f"serving log: {label}",
            log,
            {
                "log/meta.json": json.dumps({**meta, **change}).encode(),
                "log/requests.jsonl": (json.dumps(line) + "\n").encode() * 3,
            },
        )


def _schedules() -> Iterator[Case]:
    forced = ("collective", "all_gather", *CLUSTER, "-n", "2", "--sizes", "1MiB", "--algorithm")
    for label, old, new in (
        ("a dependency on itself", 'depid="-1" deps="-1"', 'depid="0" deps="0"'),
        ("a dependency on nobody", 'depid="-1" deps="-1"', 'depid="99" deps="99"'),
        ("nobody to send to", 'send="1"', 'send="7"'),
        ("sent to itself", 'send="1"', 'send="0"'),
        ("nobody receives", 'recv="1"', 'recv="-1"'),
        ("a step out of order", 's="1"', 's="0"'),
        ("cnt -1", 'cnt="1"', 'cnt="-1"'),
        ("cnt 0", 'cnt="1"', 'cnt="0"'),
        ("cnt of digits", 'cnt="1"', f'cnt="{"9" * 5000}"'),
        ("an offset outside", 'dstoff="1"', 'dstoff="2"'),
        ("a buffer of nobody", 'dstbuf="o"', 'dstbuf="z"'),
        ("a type of nobody", 'type="s"', 'type="zzz"'),
        ("channels", 'nchannels="1"', 'nchannels="1000000000"'),
        ("chan 2**40", 'chan="0"', 'chan="1099511627776"'),
        ("an id twice", '<gpu id="1"', '<gpu id="0"'),
        ("another collective", 'coll="allgather"', 'coll="alltoall"'),
        ("a collective of nobody", 'coll="allgather"', 'coll="zzz"'),
        ("inplace", 'inplace="1"', 'inplace="x"'),
        ("chunks that differ", 'o_chunks="2"', 'o_chunks="1"'),
        ("ngpus 3", 'ngpus="2"', 'ngpus="3"'),
        ("both wait", 'type="s"', 'type="r"'),
    ):
        data = changed(MSCCL, old, new)
        yield Case(f"MSCCL: {label}", (*forced, "a.xml"), {"a.xml": data})
    sound = json.loads(SCHEDULE)
    for label, change in {
        "a step without transfers": {"steps": [{"reduce": False, "transfers": []}]},
        "no step": {"steps": []},
        "transfers of three": {"steps": [{"reduce": False, "transfers": [[0, 1, 0]]}]},
        "transfers of text": {"steps": [{"reduce": False, "transfers": [["0", 1, 0, 1]]}]},
        "reduce text": {"steps": [{**sound["steps"][0], "reduce": "no"}]},
        "a contribution twice": {"steps": [{**sound["steps"][0], "reduce": True}] * 2},
        "kind of nobody": {"kind": "zzz"},
        "another kind": {"kind": "all_reduce"},
        "parts 3": {"parts": 3},
        "ranks 3": {"ranks": 3},
        "owners short": {"owners": [0]},
        "owners of nobody": {"owners": [0, 7]},
        "owners null": {"owners": None},
        "algorithm an escape": {"algorithm": "\x1b]0;x\x07"},
        "40,000 steps": {"steps": sound["steps"] * 5000},
        "a shift of all": {"steps": [{**sound["steps"][0], "shift": 1, "repeats": 999_999}]},
        "more": {"no_such": 1},
    }.items():
        yield Case(
            f"schedule: {label}",
            (*forced, "s.json"),
            {"s.json": json.dumps({**sound, **change}).encode()},
        )
    for label, text in {
        "negative": MATRIX_LIKE.replace("1", "-1", 1),
        "nan": MATRIX_LIKE.replace("1", "nan", 1),
        "1e300": MATRIX_LIKE.replace("1", "1e300", 1),
        "1e308 twice": MATRIX_LIKE.replace("1", "1e308"),
        "all 0": "0,0,0,0\n" * 4,
        "ragged": "1,2\n3\n",
        "wide": "1," * 3000 + "1\n",
        "5,000 rows": "1,1,1,1\n" * 5000,
        "text": "a,b,c,d\n" * 4,
    }.items():
        yield Case(
            f"imbalance: {label}",
            (
                "collective",
                "all_to_all",
                *CLUSTER,
                "-n",
                "4",
                "--sizes",
                "1MiB",
                "--imbalance",
                "i.csv",
            ),
            {"i.csv": text.encode()},
        )
    for value in (
        "zipf:nan",
        "zipf:-1",
        "zipf:",
        "0",
        "-1",
        "1e308",
        "nan",
        "inf",
        "/etc/passwd",
        "zipf:1e9",
    ):
        yield Case(
            f"imbalance: {value}",
            (
                "collective",
                "all_to_all",
                *CLUSTER,
                "-n",
                "4",
                "--sizes",
                "1MiB",
                "--imbalance",
                value,
            ),
            {},
        )


MATRIX_LIKE = "0,1,2,3\n1,0,2,3\n1,2,0,3\n1,2,3,0\n"


def _validation() -> Iterator[Case]:
    for label, old, new in (
        ("factor 0", ",1,0.04", ",0,0.04"),
        ("factor -1", ",0.5,", ",-1,"),
        ("factor 1e300", ",0.5,", ",1e300,"),
        ("factor 1e-300", ",0.5,", ",1e-300,"),
        ("factor 1e9", ",0.5,", ",1e9,"),
        ("step 0", ",0.05,", ",0,"),
        ("step 1e-300", ",0.05,", ",1e-300,"),
        ("step 1e9", ",0.05,", ",1e9,"),
        ("step 1e30", ",0.05,", ",1e30,"),
        ("mad -1", ",0.001,", ",-1,"),
        ("mad 1e300", ",0.001,", ",1e300,"),
        ("steps 0", ",12\n", ",0\n"),
        ("steps 1e18", ",12\n", ",1000000000000000000\n"),
        ("resource of nobody", "scale_up.bandwidth", "zzz.bandwidth"),
        ("cluster of nobody", "dgx-a100", "zzz"),
        ("cluster a path", "dgx-a100", "/etc/passwd"),
        ("trace of nobody", "job.0.et", "zzz"),
        ("trace a device", PAIRS.decode().split("\n")[1].split(",")[0], "/dev/zero"),
    ):
        data = changed(PAIRS, old, new)
        yield Case(f"pairs: {label}", ("validate", "pairs.csv"), {"pairs.csv": data})
    for label, old, new in (
        ("tp 0", ",2,1,4,", ",0,1,4,"),
        ("tp 1e9", ",2,1,4,", ",1000000000,1,4,"),
        ("dp 1e6", ",2,1,4,", ",2,1,1000000,"),
        ("sequence 1e12", ",2048,", ",1000000000000,"),
        ("batch 3", ",16,5.0", ",3,5.0"),
        ("step 0", ",5.0", ",0"),
        ("step 1e-300", ",5.0", ",1e-300"),
        ("step 1e9", ",5.0", ",1e9"),
        ("model of nobody", "llama-3.1-8b", "zzz"),
        ("model a path", "llama-3.1-8b", "/etc/passwd"),
    ):
        data = changed(STEPS, old, new)
        yield Case(f"steps: {label}", ("validate", "steps.csv"), {"steps.csv": data})
    for label, old, new in (
        ("isl 0", ",1024,", ",0,"),
        ("isl 1e9", ",1024,", ",1000000000,"),
        ("osl 1e9", ",128,", ",1000000000,"),
        ("concurrency 0", ",4,100", ",0,100"),
        ("concurrency 1e6", ",4,100", ",1000000,100"),
        ("concurrency 1e9", ",4,100", ",1000000000,100"),
        ("ttft 0", ",100,10", ",0,10"),
        ("ttft -1", ",100,10", ",-1,10"),
        ("ttft 1e300", ",100,10", ",1e300,10"),
        ("ttft 1e30", ",100,10", ",1e30,10"),
        ("ttft 1e-300", ",100,10", ",1e-300,10"),
        ("tpot 1e30", ",100,10", ",100,1e30"),
        ("tpot 1e-30", ",100,10", ",100,1e-30"),
        ("tp 3", ",1,1024", ",3,1024"),
        ("tp 1e9", ",1,1024", ",1000000000,1024"),
        ("engine of nobody", "vllm", "zzz"),
        ("machine of nobody", "hgx-h100", "zzz"),
        ("machine a path", "hgx-h100", "/etc/passwd"),
    ):
        data = changed(SERVED, old, new)
        yield Case(f"served: {label}", ("validate", "--serving", "s.csv"), {"s.csv": data})
