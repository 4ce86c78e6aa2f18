"""Names and numbers in traces that once took for ever, or were believed."""

import json
from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, changed_database


def _kineto(*events: dict[str, object], **more: object) -> bytes:
    return json.dumps(
        {
            "schemaVersion": 1,
            "distributedInfo": {"rank": 0, "world_size": 1},
            **more,
            "traceEvents": events,
        }
    ).encode()


def traces() -> Iterator[Case]:
    """Names and numbers in traces that once took for ever, or were believed."""
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 100}
    step = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 500,
    }
    for label, change in {
        "ts 1e300": {"ts": 1e300},
        "dur 1e300": {"dur": 1e300},
        "dur -1": {"dur": -1},
        "ts nan": {"ts": "nan"},
        "ts text": {"ts": "9" * 5000},
        "tid 1e30": {"tid": 1e30},
        "pid huge": {"pid": 10**400},
        "name long": {"name": "a" * 900_000},
        "name digits": {"name": "9" * 20_000},
        "name hashes": {"name": "#" * 20_000},
        "name escape": {"name": "\x1b]0;x\x07"},
        "ts 2**63": {"ts": 2**63},
        "dur 1e12": {"dur": 1e12},
        "name step": {"name": "ProfilerStep#" + "9" * 20_000},
        "name nested": {"name": "(" * 20_000},
        "name iteration": {"name": "iteration " * 9000},
    }.items():
        data = _kineto(step, {**op, **change})
        yield Case(f"kineto: {label}", ("utility", "r.json", *CLUSTER), {"r.json": data})
        yield Case(f"kineto: {label}", ("inspect", "r.json"), {"r.json": data})
    sync = {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "pid": 0,
        "tid": 7,
        "ts": 150,
        "dur": 50,
    }
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "ts": 120,
        "dur": 5,
    }
    streams = ({**sync, "name": "gemm", "tid": at, "ts": 150 + at / 10} for at in range(20_000))
    data = _kineto(step, op, *streams)
    yield Case("kineto: a stream for each kernel", ("inspect", "r.json"), {"r.json": data})
    for label, args in {
        "size 10**30": {"In msg nelems": 10**30},
        "size -1": {"In msg nelems": -1},
        "size 1e308": {"In msg nelems": 1e308},
        "size 2**62": {"In msg nelems": 2**62},
        "group size 1e9": {"Group size": 10**9},
        "group size 0": {"Group size": 0},
        "ranks long": {"Process Group Ranks": "[" + "9" * 5000 + "]"},
        "ranks nested": {"Process Group Ranks": "[" * 50_000},
        "ranks 2**63": {"Process Group Ranks": "[0, 9223372036854775808]"},
        "ranks -1": {"Process Group Ranks": "[0, -1]"},
        "group size 2**63": {"Group size": 2**63},
        "group size 100000": {"Group size": 100_000},
        "dtype": {"dtype": "x" * 9000},
        "splits": {"In split size": "[" + "1, " * 90_000 + "1]"},
        "split huge": {"In split size": "[" + "9" * 5000 + "]"},
    }.items():
        comm = {
            "Collective name": "allreduce",
            "In msg nelems": 1024,
            "Out msg nelems": 1024,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
            "correlation": 5,
            "stream": 7,
            **args,
        }
        data = _kineto(step, op, {**launch, "args": {"correlation": 5}}, {**sync, "args": comm})
        yield Case(f"kineto comm: {label}", ("utility", "r.json", *CLUSTER), {"r.json": data})
        yield Case(
            f"kineto comm: {label}",
            ("utility", "r.json", *CLUSTER, "--replicate"),
            {"r.json": data},
        )
    for world in (10**9, 2**63, -1, 0, 10**6, 10**400, 2**24):
        data = _kineto(step, op, distributedInfo={"rank": 0, "world_size": world})
        yield Case(
            f"kineto: world {str(world)[:12]}",
            ("utility", "r.json", *CLUSTER, "--replicate"),
            {"r.json": data},
        )
        yield Case(f"kineto: world {str(world)[:12]}", ("inspect", "r.json"), {"r.json": data})
        data = _kineto(step, op, distributedInfo={"rank": world, "world_size": 2})
        yield Case(f"kineto: rank {str(world)[:12]}", ("inspect", "r.json"), {"r.json": data})
    yield from _nsys()
    yield from _text_traces()
    for pattern in (
        "(a+)+$",
        "(a|a)*b",
        "(.*)*x",
        "(a*)*b|" * 50 + "a",
        "(" * 5000,
        "a{99999}{99999}",
        "(?P<a>a)(?P<a>b)",
        ".*" * 60 + "b",
        "(x+x+)+y",
        "[",
        "\\",
        "(?R)",
        "a" * 100_000,
        "(?=(a+))+b",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
    ):
        rules = json.dumps([{"pattern": pattern, "kind": "all_reduce"}]).encode()
        names = [
            {**op, "cat": "kernel", "pid": 0, "tid": 7, "name": "a" * 5000 + "!", "ts": 20 + n}
            for n in range(3)
        ]
        names.append({**op, "cat": "kernel", "pid": 0, "tid": 7, "name": "x" * 5000, "ts": 50})
        data = _kineto(step, op, *names)
        yield Case(
            f"--kernels {pattern[:20]}",
            ("utility", "r.json", *CLUSTER, "--kernels", "k.yaml"),
            {"k.yaml": rules, "r.json": data},
        )


def _nsys() -> Iterator[Case]:
    for label, text in {
        "digits": "9" * 20_000,
        "hashes": "#" * 20_000,
        "step digits": "step " + "9" * 20_000,
        "blanks": " " * 20_000 + "x",
        "brackets": "[" * 20_000,
        "commas": "NCCL:ncclAllReduce(" + "9," * 10_000,
        "dashes": "-" * 20_000 + "1",
        "mixed": "1#" * 10_000 + "x",
        "letters": "a1" * 10_000,
    }.items():
        for column in ("value",):
            data = changed_database(f"UPDATE StringIds SET {column} = '{text}'")
            yield Case(f"nsys: names of {label}", ("inspect", "a.sqlite"), {"a.sqlite": data})
        data = changed_database(f"UPDATE NVTX_EVENTS SET text = '{text}'")
        for command in (("inspect", "a.sqlite"), ("utility", "a.sqlite", *CLUSTER)):
            yield Case(f"nsys: ranges of {label}", command, {"a.sqlite": data})
    for statement in (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 9223372036854775807",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 2147483648",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = -5",
        "DELETE FROM NVTX_EVENTS",
        "PRAGMA user_version = 99",
        "CREATE TABLE t(a); WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<50000) INSERT INTO t SELECT x FROM n",
    ):
        yield Case(
            f"nsys: {statement[:60]}",
            ("utility", "a.sqlite", *CLUSTER),
            {"a.sqlite": changed_database(statement)},
        )


def _text_traces() -> Iterator[Case]:
    goals = {
        "ranks 1e9": b"num_ranks 1000000000\n",
        "ranks 2**63": b"num_ranks 9223372036854775808\n",
        "ranks long": b"num_ranks " + b"9" * 5000 + b"\n",
        "ranks 1e6": b"num_ranks 1000000\nrank 0 {\nl1: calc 1\n}\n",
        "calc long": b"num_ranks 1\nrank 0 {\nl1: calc " + b"9" * 5000 + b"\n}\n",
        "calc 1e18": b"num_ranks 1\nrank 0 {\nl1: calc 1000000000000000000\n}\n",
        "calc 2**64": b"num_ranks 1\nrank 0 {\nl1: calc 18446744073709551616\n}\n",
        "size long": b"num_ranks 2\nrank 0 {\nl1: send "
        + b"9" * 400
        + b"b to 1\n}\nrank 1 {\nl1: recv 8b from 0\n}\n",
        "send to 2**40": b"num_ranks 2\nrank 0 {\nl1: send 8b to 1099511627776\n}\n",
        "cycle": b"num_ranks 1\nrank 0 {\nl1: calc 1\nl2: calc 1\nl1 requires l2\nl2 requires l1\n}\n",
        "comment": b"/*" * 100_000,
        "slashes": b"//" * 200_000 + b"num_ranks 1",
        "label long": b"num_ranks 1\nrank 0 {\n" + b"l" * 90_000 + b": calc 1\n}\n",
        "stars": b"/*" + b"*" * 300_000,
        "tag": b"num_ranks 2\nrank 0 {\nl1: send 8b to 1 tag "
        + b"9" * 400
        + b"\n}\nrank 1 {\nl1: recv 8b from 0 tag 1\n}\n",
    }
    for label, data in goals.items():
        for command in (("inspect", "a.goal"), ("utility", "a.goal", *CLUSTER)):
            yield Case(f"goal: {label}", command, {"a.goal": data})
    event = {
        "ph": "X",
        "pid": 1,
        "tid": 2,
        "ts": 1,
        "dur": 5,
        "name": "fusion.1",
        "args": {"hlo_module": "m", "hlo_op": "fusion.1"},
    }
    heads = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
    ]
    hlo = (
        "%all-reduce.1 = f32[{}]{{0}} all-reduce(f32[8]{{0}} %p), replica_groups={}, to_apply=%add"
    )
    for label, change in {
        "shape long": {
            "args": {"long_name": hlo.format("9" * 5000, "{{0,1}}"), "hlo_category": "all-reduce"}
        },
        "groups deep": {
            "args": {"long_name": hlo.format("8", "{" * 50_000), "hlo_category": "all-reduce"}
        },
        "groups iota": {
            "args": {
                "long_name": hlo.format("8", "[1,1000000000]<=[1000000000]"),
                "hlo_category": "all-reduce",
            }
        },
        "groups iota 2": {
            "args": {
                "long_name": hlo.format("8", "[100000,100000]<=[10000000000]"),
                "hlo_category": "all-reduce",
            }
        },
        "token digits": {
            "args": {"long_name": "%a = " + "f32[" * 20_000, "hlo_category": "all-reduce"}
        },
        "token commas": {
            "args": {"long_name": "%a = (" + "f32[1], " * 50_000, "hlo_category": "all-reduce"}
        },
        "token digits 2": {
            "args": {
                "long_name": "%a = f32[" + "1" * 50_000 + "] all-reduce(",
                "hlo_category": "all-reduce",
            }
        },
        "token spaces": {
            "args": {"long_name": "%a = " + " " * 50_000 + "x", "hlo_category": "all-reduce"}
        },
        "name digits": {"name": "all-reduce." + "9" * 20_000},
        "ts 1e300": {"ts": 1e300},
        "dur nan": {"dur": "nan"},
    }.items():
        data = json.dumps({"traceEvents": [*heads, {**event, **change}]}).encode()
        for command in (("inspect", "a.trace.json"), ("utility", "a.trace.json", *CLUSTER)):
            yield Case(f"XLA JSON: {label}", command, {"a.trace.json": data})
