"""Bad inputs that once ended in a traceback, without end or in gigabytes, and the mutators."""

import json
import os
import random
import signal
import time

import pytest

from benchmarks.fuzz import harness
from benchmarks.fuzz.__main__ import endless
from benchmarks.fuzz.cases import (
    archives,
    combined,
    dumps,
    listed_inputs,
    more_networks,
    more_tables,
    more_traces,
    more_words,
    networks,
    recordings,
    schedules,
    studies,
    tables,
    traces,
    words,
    xml_files,
)
from benchmarks.fuzz.harness import Case, Outcome
from benchmarks.fuzz.mutators import LEAVES, _fields, _json, mutated, substituted, tokens
from benchmarks.fuzz.seeds import OSU, seeds, words_of

FOUND = {
    archives.archives: ("tar: sparse", "tar: links", "zip: rows without end", "zip: many members"),
    schedules.schedules: (
        "schedule: ranks 2147483647",
        "schedule: chunks 2147483647",
        "MSCCL: chunks",
    ),
    xml_files.xml_files: (
        "XML: encoding no-such",
        "XML: encoding utf-7",
        "XML: 5,000 nested pci",
        "XML: 0 links",
        "XML: 100000000 links",
        "XML: 999999999 links",
        "XML: net speed 0",
        "XML: 999999999 lanes",
    ),
    traces.traces: (
        "kineto: a stream for each kernel",
        "kineto comm: group size 1e9",
        "kineto comm: size 1e308",
        "kineto comm: ranks 2**63",
        "kineto: world 1000000",
        "kineto: ts 1e300",
        "nsys: ranges of digits",
        "nsys: ranges of hashes",
        "--kernels (a+)+$",
        "--kernels (a|a)*b",
        "--kernels .*.*.*",
        "goal: ranks 1e9",
        "goal: slashes",
        "XLA JSON: groups iota",
        "XLA JSON: token digits",
    ),
    networks.networks: (
        "smi: NV0",
        "smi: NV9999999999",
        "InfraGraph: count: 2 1000000000",
        "cluster: 1e-320 B/s",
        "cluster: 1e300 s",
        "cluster: 1e300 GB/s",
        "graph: 1e-320 B/s",
    ),
    tables.logs: (
        "log: OSU size of 400 digits",
        "log: nccl rank 1e9",
        "log: blanks",
        "requests: NUL",
    ),
    studies.studies: (
        "study: a pipe as lock",
        "study: a link as results",
        "study: an index as pipe",
    ),
    words.words: (
        "spec ring:10000",
        "spec torus:64x64x64",
        "cables 1e-320 B/s",
        "sizes 1e30",
        "ranks of a log 1000000000",
    ),
}


FOUND |= {
    studies.more_studies: ("study: a weight of 1e308",),
    recordings.recordings: (
        "pipeline: a column twice",
        "pipeline: every row twice",
        "pipeline: times that are true",
        "pipeline: all at once",
        "pipeline: step 9",
        "rocpd: rocpd_region.start 9223372036854775807",
        "RPD: rocpd_api.end 9223372036854775807",
        "predictions: a row of digits",
        "predictions: a column twice",
        "ratios: step_ratio_b_over_a_measured 999999999",
    ),
    listed_inputs.commands: (
        "command: inspect",
        "command: utility S -c dgx-a100 --ranks=",
        "command: atlas -o o --models llama-3.2-1b --clusters dgx-a100 --gpus 9",
        "command: study study.yaml --no-cache --dask tls",
        "command: study study.yaml --no-cache --dask ucx",
        "command: collective all_to_all -c dgx-a100 -n 4 --sizes 1MiB --imbalance zipf:1e308",
        "command: collective all_to_all -c dgx-a100 -n 4 --sizes 1MiB --imbalance own.csv:9",
    ),
    listed_inputs.what_ifs: ("what-if text: layers 2 -> 123456789",),
    more_traces.more_traces: ("XLA JSON: device of 5,000 digits", "folder: a new line in a name"),
    more_networks.more_networks: (
        "cluster: nodes: 010",
        "cluster: nodes: 1:30",
        "cluster: 3000000000 s",
        "InfraGraph: a slice backwards",
        "InfraGraph: 10,000 components",
    ),
    more_tables.more_tables: (
        "log: perftest: a superscript",
        "log: nccl: a rank twice",
        "log: table: time 1e-30",
        "requests: all at once",
        "requests: prompt 1.5",
        "serving log: first before arrival",
        "serving log: first text",
        "serving log: tp text",
        "serving log: sequences -1",
        "serving log: kwargs a list",
        "served: ttft -1",
        "served: ttft 0",
        "served: tpot 1e-30",
    ),
    more_words.more_words: (
        "what-if: 'scale_out.flows = 99999",
        "utility --step 99999",
        "generate: --pp 32 --micro-batch 1 --global-batch 1",
        "serving: --factor 1e308",
        "serving: --instances 100000",
        "options: 'topology torus:4x4 --throughput shift:9",
        "collective: all_reduce 1MiB ranks 0-7 all_reduce",
    ),
}

FOUND |= {
    listed_inputs.serving_options: (
        "serving option: --seeds 1000000000",
        "serving option: --requests-count 2000000",
        "serving option: --slo ttft 1e9 s --find rate",
        "serving option: --sweep rate=nan",
        "serving option: --sweep compute=1e-300",
        "serving option: --blocks 999999999999999999",
        "serving option: --engine-version 0.19.0\0",
    ),
    listed_inputs.request_files: (
        "request file: bench 1.5",
        "request file: bench start a word",
        "request file: moon hash list",
        "request file: moon hash null",
        "request file: moon hash ragged",
        "request file: moon hash float",
    ),
    dumps.dumps: (
        "dump: sizes 2**62",
        "dump: name send far",
        "dump: ranks blanks",
        "dump: status digits",
        "dump: groups digits",
        "dump: long int",
    ),
    listed_inputs.cluster_files: (
        "cluster file: ranks_per_node: 1000000000",
        "cluster file: peak: {bf17: 312 TFLOP/s",
        "cluster file: scale_out: {transport: [rdma]",
        "cluster file:  {name: none}\nnode_kinds: {a: {count: 4}, b: {count: 4, like: c.yaml}}",
    ),
}

FOUND |= {
    combined.combined: (
        "combined: utility S -c dgx-a100 --failures mtbf 1e-300 h",
        "combined: share S x2 --start gloo-ddp-4:1=1 s --start",
        "combined: clusters c.yaml --write c.yaml",
    ),
    combined.changed_files: (
        'changed: config: "intermediate_size": 5632, "num_local_experts": 8',
        "changed: model: heads: 15",
        "changed: plan: global_batch: 3",
        "changed: schedule: [0, 2, 0, 1]",
    ),
}

_REFUSED = (
    "combined:",
    "changed:",
    "tar: sparse",
    "schedule:",
    "XML:",
    "kineto comm: size",
    "--kernels",
    "smi:",
    "cluster:",
    "spec",
    "InfraGraph:",
    "log: nccl: a rank twice",
    "requests: prompt",
    "study: a weight",
    "generate:",
    "serving:",
    "options:",
    "serving option:",
    "request file:",
    "cluster file:",
)
"""Of these none may be answered; of the others some may, without what is damaged."""


_SLOW = (
    *(archives.archives, traces.traces, more_tables.more_tables, dumps.dumps),
    *(recordings.recordings, listed_inputs.commands),
    *(listed_inputs.serving_options, listed_inputs.request_files, listed_inputs.cluster_files),
)
"""Cases that take ten seconds and more together: the rest is tried each time."""


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=make.__name__, marks=[pytest.mark.slow] if make in _SLOW else [])
        for make in FOUND
    ],
)
def test_what_was_found_once_is_refused_in_one_line(make):
    wanted = dict.fromkeys(FOUND[make])
    left = set(wanted)
    for case in make():
        name = next((name for name in left if case.name.startswith(name)), None)
        if name is not None:
            left.discard(name)
            outcome = harness.run(case)
            assert outcome.verdict() == "", (case.name, outcome)
            if name.startswith(_REFUSED):
                assert outcome.status in (1, 2), (case.name, outcome)
                assert outcome.out == ""
    assert not left


KINDS = [
    *("kineto", "kineto-gz", "chakra", "nsys", "ndtimeline", "rpd"),
    *("rocpd", "rocprofv3", "flight-recorder", "flight-json", "pytorch-et", "xplane"),
    *("xla-json", "bundle", "goal", "graph-json", "graphml", "nccl-xml"),
    *("nvidia-smi", "infragraph", "nccl-tests", "inspector", "osu", "calls"),
    *("calls-json", "msccl", "schedule", "cluster", "kernels", "model"),
    *("config", "study", "plan", "requests", "requests-json", "pairs"),
    *("steps", "served", "placement", "imbalance", "own-kernels"),
]


@pytest.fixture(scope="module")
def every_seed():
    """Make the files once, when a test asks for them: they take most of a second."""
    return {seed.kind: seed for seed in seeds()}


def test_every_kind_of_file_is_tried(every_seed):
    assert list(every_seed) == KINDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_answered(kind, every_seed):
    """What a campaign changes is sound, or all that it changes is refused for another reason."""
    seed = every_seed[kind]
    command = seed.commands[0]
    words = words_of(command, seed.name)
    outcome = harness.run(Case(seed.kind, words, {seed.name: seed.data, **dict(seed.beside)}))
    assert outcome.verdict() == ""
    assert outcome.status == 0, outcome.err


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_of_chance_changes_the_same_bytes(kind, every_seed):
    seed = every_seed[kind]
    first, second = (
        [mutated(seed, random.Random(number)) for number in range(5)] for _ in range(2)
    )
    if seed.kind != "nsys":  # SQLite counts the changes of a file
        assert first == second
    assert any(data != seed.data for data in first)


def test_a_changed_tree_leaves_nothing_behind_for_the_next():
    leaves = repr(LEAVES)
    for number in range(3000):
        _json(b'{"a": [[]], "b": {}}', random.Random(number))
    assert repr(LEAVES) == leaves


def test_a_token_is_replaced_and_nothing_else():
    for number in range(tokens(OSU)):
        changed = substituted(OSU, number, b"@")
        assert changed.count(b"@") == 1
        assert tokens(changed) == tokens(OSU) - 1


def test_a_wire_message_is_taken_apart_field_by_field():
    assert _fields(b"\x08\x96\x01\x12\x02hi") == [(1, 0, 150), (2, 2, b"hi")]
    assert _fields(b"\x12\x05hi") is None


def test_reading_takes_at_most_eight_times_the_memory_of_the_json(every_seed):
    """Beyond what a small trace takes; 3 MB have 8,000 operators."""
    seed = every_seed["kineto"]
    trace = json.loads(seed.data)
    operator = next(event for event in trace["traceEvents"] if event.get("cat") == "cpu_op")
    trace["traceEvents"] += [
        {**operator, "name": f"aten::{'x' * 250}{number % 9}", "ts": operator["ts"] + 9 * number}
        for number in range(8000)
    ]
    large = json.dumps(trace).encode()
    small, peak = (
        harness.run(Case("memory", ("inspect", seed.name), {seed.name: data})).peak
        for data in (seed.data, large)
    )
    assert len(large) > 3e6
    assert peak - small < 8 * len(large)


def test_what_ends_or_keeps_a_process_is_the_case_that_it_was_at():
    """Three cases in one process, of which the second kills it; the third has another."""

    def kill(path):
        os.kill(os.getpid(), signal.SIGKILL)

    look = ("topology", "ring:4")
    cases = [
        Case("first", look, {}),
        Case("killed", look, {"a": kill}),
        Case("third", look, {}),
        Case("refused", ("topology", "zzz"), {}),
    ]
    outcomes = list(harness.run_all(cases.__getitem__, range(len(cases))))
    verdicts = [(cases[number].name, outcome.verdict()) for number, outcome in outcomes]
    assert verdicts == [("first", ""), ("killed", "hang"), ("third", ""), ("refused", "")]
    assert [outcome.status for _, outcome in outcomes] == [0, -9, 0, 1]


def test_a_random_case_is_made_of_seed_and_number_alone():
    """So that what two processes were at can be tried again, alone and in any order."""
    case_of, numbers = endless(5, "calls")
    again, _ = endless(5, "calls")
    assert [next(iter(numbers)) for _ in range(2)] == [0, 1]
    assert [case_of(number) for number in (3, 8)] == [again(number) for number in (8, 3)][::-1]
    other, _ = endless(6, "calls")
    assert any(case_of(number) != other(number) for number in range(9))
    outcomes = dict(harness.run_all(case_of, range(4), workers=2))
    assert sorted(outcomes) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(0, 1.0, 10**8, "fine", ""), ""),
        (Outcome(1, 1.0, 10**8, "", "error: a: wrong"), ""),
        (Outcome(1, 1.0, 10**8, "", "error: a fault of twofold itself, please"), "traceback"),
        (Outcome(1, 1.0, 10**8, "", "Traceback (most recent call last):"), "traceback"),
        (Outcome(-24, 1.0, 10**8, "", ""), "hang"),
        (Outcome(1, 31.0, 10**8, "", "error: late"), "hang"),
        (Outcome(1, 1.0, 3 * 10**9, "", "error: large"), "memory"),
        (Outcome(0, 1.0, 3 * 10**9, "a large job", "", 4 * 10**9), ""),
        (Outcome(-11, 1.0, 10**8, "", ""), "status -11"),
        (Outcome(0, 1.0, 10**8, "step 1e300 s", ""), "nonsense believed"),
        (Outcome(0, 1.0, 10**8, "model llama-inf-8b gloo-ddp--1e308 NCCL 1e30.3", ""), ""),
        (Outcome(0, 1.0, 10**8, '{"a": -1.5e+300, "b": 1}', ""), "nonsense believed"),
        (Outcome(0, 1.0, 10**8, "step -inf s", ""), "nonsense believed"),
        (Outcome(0, 1.0, 10**8, json.dumps({"a": float("nan")}), ""), "nonsense believed"),
    ],
)
def test_a_verdict_names_what_is_wrong(outcome, verdict):
    assert outcome.verdict() == verdict


def test_names_of_a_file_are_no_numbers():
    case = harness.Case("json", ("inspect",), {"a": b'{"version": "nan", "size": 1e300}'})
    assert case.names() == {"nan"}
    assert Outcome(0, 1.0, 10**8, "version nan\nsize 1e300", "").nonsense() == {"nan", "1e300"}


def test_a_process_that_sleeps_for_ever_is_tried_once_more(tmp_path, monkeypatch):
    """A lock that was held when it was forked is no fault of a case; a pipe without an end is."""
    monkeypatch.setattr(harness, "_STUCK_S", 0.3)
    monkeypatch.setattr(harness, "_LOOK_S", 0.1)

    def case_of(number):
        mark = tmp_path / str(number)
        if number == 2 or not mark.exists():
            mark.write_text("")
            time.sleep(600)
        return Case("sleeper", ("clusters", "--help"), {})

    begun = time.monotonic()
    outcomes = dict(harness.run_all(case_of, (1, 2, 3)))
    assert [outcomes[number].verdict() for number in (1, 2, 3)] == ["", "hang", ""]
    assert time.monotonic() < begun + 50


def test_whoever_stops_listening_leaves_no_process(tmp_path):
    def case_of(_):
        (tmp_path / "process").write_text(str(os.getpid()))
        return Case("help", ("clusters", "--help"), {})

    listening = harness.run_all(case_of, range(10**6))
    next(listening)
    process = int((tmp_path / "process").read_text())
    os.kill(process, 0)
    listening.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
