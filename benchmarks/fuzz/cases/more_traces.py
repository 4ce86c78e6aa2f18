"""Traces of every reader whose ids, links between events, times and shapes are of no sense."""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

from benchmarks.fuzz.cases.traces import _kineto
from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, GOAL, SAMPLES, changed_database

STEP = {
    **{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1},
    **{"ts": 0, "dur": 500},
}
OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 100}


def _asked(name: str, file: str, data: bytes, *, replicate: bool = False) -> Iterator[Case]:
    for words in (
        ("inspect", file),
        ("utility", file, *CLUSTER, *(("--replicate",) if replicate else ())),
        ("replay", file, *CLUSTER, "--metrics"),
    ):
        yield Case(name, words, {file: data})


def more_traces() -> Iterator[Case]:
    """Yield them all."""
    yield from _of_kineto()
    yield from _of_chakra()
    yield from _of_execution_traces()
    yield from _of_xla()
    yield from _of_goal()
    yield from _of_nsys()
    yield from _of_folders()


def _of_kineto() -> Iterator[Case]:
    launch = {
        **{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1},
        **{"ts": 10, "dur": 5, "args": {"correlation": 5}},
    }
    kernel = {
        **{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 50},
        "args": {"correlation": 5, "stream": 7, "device": 0},
    }
    many = [{**kernel, "ts": 20 + n, "dur": 1} for n in range(2000)]
    for label, events in {
        "kernel before its launch": [launch, {**kernel, "ts": -1e9}],
        "one correlation of 2,000 kernels": [launch, *many],
        "stream -1": [launch, {**kernel, "args": {"correlation": 5, "stream": -1}}],
        "stream 2**40": [launch, {**kernel, "args": {"correlation": 5, "stream": 2**40}}],
        "stream text": [launch, {**kernel, "args": {"correlation": 5, "stream": "9" * 5000}}],
        "correlation 2**64": [launch, {**kernel, "args": {"correlation": 2**64}}],
        "correlation a list": [launch, {**kernel, "args": {"correlation": [1]}}],
        "args a list": [launch, {**kernel, "args": [1]}],
        "args null": [launch, {**kernel, "args": None}],
        "5,000 open begins": [{**OP, "ph": "B", "ts": n} for n in range(5000)],
        "ends alone": [{**OP, "ph": "E", "ts": n} for n in range(50)],
        "3,000 nested ops": [{**OP, "ts": n, "dur": 9000 - 2 * n} for n in range(3000)],
        "overlapping ops": [{**OP, "ts": n, "dur": 100 + n} for n in range(300)],
        "ts of 2**53": [{**OP, "ts": 2**53}, {**OP, "ts": 2**53 + 1}],
        "a day between two ops": [OP, {**OP, "ts": 8.64e10}],
        "ts negative": [{**OP, "ts": -5e15}],
        "all of no time": [{**OP, "ts": 0, "dur": 0}],
        "counter of 1e308": [OP, {**OP, "ph": "C", "args": {"Total Reserved": 1e308}}],
        "a name as number": [{**OP, "name": 5}],
        "a name null": [{**OP, "name": None}],
        "a cat of bytes": [{**OP, "cat": "\ud800"}],
        "Input Dims 1e18": [{**OP, "args": {"Input Dims": [[10**18, 10**18], [10**18, 4]]}}],
        "Input Dims negative": [{**OP, "args": {"Input Dims": [[-4, -4], [-4, -4]]}}],
        "flow to itself": [
            launch,
            {**launch, "ph": "s", "id": 5, "cat": "ac2g"},
            {**launch, "ph": "f", "id": 5, "cat": "ac2g"},
            kernel,
        ],
        "FLOPs 1e300": [launch, {**kernel, "args": {**kernel["args"], "flops": 1e300}}],
        "steps of one name": [STEP] * 300,
        "a step within a step": [
            {**STEP, "name": f"ProfilerStep#{n}", "ts": n, "dur": 500 - 2 * n} for n in range(200)
        ],
    }.items():
        yield from _asked(f"kineto: {label}", "r.json", _kineto(STEP, *events))
    for label, more in {
        "baseTimeNanoseconds 1e300": {"baseTimeNanoseconds": 1e300},
        "baseTimeNanoseconds text": {"baseTimeNanoseconds": "9" * 5000},
        "distributedInfo a list": {"distributedInfo": [1, 2]},
        "rank text": {"distributedInfo": {"rank": "0", "world_size": "2"}},
        "deviceProperties huge": {"deviceProperties": [{"id": 2**70, "name": "A" * 9000}]},
        "deviceProperties clock": {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 10**30}]
        },
        "pg_config": {
            "distributedInfo": {
                **{"rank": 0, "world_size": 2},
                "pg_config": [{"pg_name": "0", "ranks": list(range(200_000)), "pg_size": 2**62}],
            }
        },
        "displayTimeUnit": {"displayTimeUnit": "9" * 999},
        "record_shapes list": {"record_shapes": [[[]]], "with_flops": {"a": 1}},
    }.items():
        yield from _asked(f"kineto: {label}", "r.json", _kineto(STEP, OP, **more))
    text = _kineto(STEP, OP).decode()
    for label, data in {
        "a comment": text.replace("{", "/* */{", 1),
        "NaN": text.replace('"dur": 100', '"dur": NaN'),
        "Infinity": text.replace('"dur": 100', '"dur": Infinity'),
        "a key twice": text.replace('"dur": 100', '"dur": 100, "dur": 1e18'),
        "traceEvents twice": text[:-1] + ', "traceEvents": []}',
        "traceEvents a number": '{"schemaVersion": 1, "traceEvents": 7}',
        "a lone surrogate": text.replace("aten::mm", "\\ud800"),
        "a NUL in a name": text.replace("aten::mm", "a\\u0000b"),
        "a tail": text + "x" * 99,
        "two documents": text + text,
    }.items():
        yield from _asked(f"kineto: {label}", "r.json", data.encode())
    yield from _asked(
        "kineto: gzip without an end", "r.json.gz", gzip.compress(_kineto(STEP, OP))[:-9]
    )
    wrong = bytearray(gzip.compress(_kineto(STEP, OP)))
    wrong[-6] ^= 255
    yield from _asked("kineto: gzip of a wrong sum", "r.json.gz", bytes(wrong))


def _of_chakra() -> Iterator[Case]:
    from helpers.chakra_traces import body, collective, host, node, receive, send

    for label, nodes in {
        "a cycle": (node(1, after=(2,)), node(2, after=(1,))),
        "itself": (node(1, after=(1,)),),
        "an id twice": (node(1, us=5), node(1, us=7)),
        "nobody": (node(1, after=(10**18,)),),
        "an id of 2**63": (node(2**63 - 1, us=3),),
        "a century": (node(1, us=4 * 10**15),),
        "all time": (node(1, us=2**63 - 1), node(2, us=2**63 - 1, after=(1,))),
        "a size of 2**62": (collective(1, size=2**62),),
        "a size of 0": (collective(1, size=0),),
        "a negative size": (collective(1, size=-5),),
        "sent to itself": (send(1, 0, 0),),
        "sent to 2**40": (send(1, 0, 2**40),),
        "sent by -1": (send(1, -1, 0), receive(2, 0, -1)),
        "received of nobody": (receive(1, 7, 0),),
        "a tag of 2**63": (send(1, 0, 1, tag=2**63 - 1),),
        "a kind of no sense": (node(1, 99),),
        "a collective of no sense": (node(1, 7, is_cpu_op=False, comm_type=999, comm_size=8),),
        "no node": (),
        "a group that is none": (collective(1, pg_name="9" * 5000),),
        "a name of 500,000": (node(1, name="a" * 500_000, us=2),),
        "a thousand parents": tuple(node(n, after=tuple(range(1, n))) for n in range(1, 400)),
        "a deep chain": tuple(host(n, after=(n - 1,) if n > 1 else ()) for n in range(1, 20_000)),
        "tensor of 2**62": (node(1, num_ops=2**62, tensor_size=2**62),),
        "flops of 1e308": (node(1, num_ops=1e308, tensor_size=1e308),),
        "involved_dim": (collective(1, involved_dim=[True] * 9000),),
    }.items():
        yield from _asked(f"chakra: {label}", "job.0.et", body(*nodes))
    sound = body(node(1, us=10), collective(2, after=(1,)))
    for label, data in {
        "a length of 2**35": b"\xff\xff\xff\xff\x7f" + sound,
        "a length of eleven bytes": b"\xff" * 11 + sound,
        "a length of 0": b"\0" * 9000,
        "groups": b"\x05" + b"\x0b\x0b\x0b\x0b\x0b" + sound,
        "twice": sound + sound,
        "a version": body(node(1), version="9" * 9000),
    }.items():
        yield from _asked(f"chakra: {label}", "job.0.et", data)
    for label, graph in {
        "Id text": [{"Id": "1", "Name": "a", "NodeType": 4, "runtime": 5}],
        "Id 2**63": [{"Id": 2**63, "Name": "a", "NodeType": 4, "runtime": 5}],
        "runtime 1e18": [{"Id": 1, "Name": "a", "NodeType": 4, "runtime": 10**18}],
        "runtime -1": [{"Id": 1, "Name": "a", "NodeType": 4, "runtime": -1}],
        "data_deps itself": [{"Id": 1, "Name": "a", "NodeType": 4, "data_deps": [1]}],
        "data_deps nobody": [{"Id": 1, "Name": "a", "NodeType": 4, "data_deps": [2**62]}],
        "comm_size -1": [{"Id": 1, "NodeType": 7, "comm_type": 0, "comm_size": -1}],
        "comm_size 2**62": [{"Id": 1, "NodeType": 7, "comm_type": 0, "comm_size": 2**62}],
        "comm_dst 2**62": [{"Id": 1, "NodeType": 5, "comm_size": 8, "comm_dst": 2**62}],
        "NodeType 99": [{"Id": 1, "NodeType": 99}],
        "NodeType -1": [{"Id": 1, "NodeType": -1}],
        "no node": [],
        "a table": {"Id": 1},
        "nulls": [None] * 5,
        "pg_name": [
            {"Id": 1, "NodeType": 7, "comm_type": 0, "comm_size": 8, "pg_name": "x" * 9**5}
        ],
    }.items():
        data = json.dumps({"workload_graph": graph}).encode()
        yield from _asked(f"chakra JSON: {label}", "job.0.json", data)
    head = '{"version": "0.0.4"}\n'
    for label, text in {
        "id text": head + '{"id": "x", "name": "a", "type": "COMP_NODE"}',
        "type text": head + '{"id": "1", "name": "a", "type": "NO_SUCH_NODE"}',
        "attr of no sense": head + '{"id": "1", "attr": [{"name": "comm_size", "int64Val": "-5"}]}',
        "attr nested": head + '{"id": "1", "attr": ' + "[" * 900 + "]" * 900 + "}",
        "nodes nested": head + '{"id": ' * 5000,
        "duration": head
        + '{"id": "1", "type": "COMP_NODE", "durationMicros": "1'
        + "0" * 18
        + '"}',
        "an unknown field": head + '{"id": "1", "no_such": 5}',
        "base64": head + '{"id": "1", "attr": [{"name": "a", "bytesVal": "%%%"}]}',
    }.items():
        yield from _asked(f"chakra JSON, jsonizer: {label}", "job.0.json", text.encode())


def _of_execution_traces() -> Iterator[Case]:
    from helpers.pytorch_et_files import Program

    def document(**changes: Any) -> dict[str, Any]:
        program = Program()
        program.op("aten::mm")
        program.comm("allreduce", 1024, 2)
        made: dict[str, Any] = json.loads(json.dumps(program.document()))
        for node in made["nodes"]:
            if "mm" in node["name"]:
                node.update(changes)
        return made

    for label, made in {
        "id 2**63": document(id=2**63),
        "id -1": document(id=-1),
        "id text": document(id="1"),
        "parent itself": document(ctrl_deps=3),
        "parent nobody": document(ctrl_deps=10**18),
        "inputs a number": document(inputs=5),
        "inputs nested": document(inputs={"values": [[[[[[]]]]]], "shapes": 1, "types": [2]}),
        "shape 2**62": document(
            inputs={
                "values": [[1, 1, 0, 2**62, 4, "cuda:0"]],
                "shapes": [[2**62]],
                "types": ["Tensor(float)"],
            }
        ),
        "attrs a table": document(attrs={"name": "rf_id", "value": 5}),
        "attrs of 2**70": document(attrs=[{"name": "rf_id", "type": "uint64", "value": 2**70}]),
        "name null": document(name=None),
        "schema 99": {**document(), "schema": "99.0.0"},
        "schema a list": {**document(), "schema": [1]},
        "nodes a table": {**document(), "nodes": {"a": 1}},
        "nodes null": {**document(), "nodes": [None] * 9},
        "no nodes": {"schema": "1.0.1", "pid": 1},
        "start_ts 1e300": {**document(), "start_ts": 1e300, "finish_ts": -1e300},
    }.items():
        yield from _asked(f"execution trace: {label}", "et.json", json.dumps(made).encode())
    data = json.dumps(document()).encode()
    for label, old, new in (
        ("ranks 2**40", '"0, 1"', '"0, 1099511627776"'),
        ("pg_size", '"pg_size"', '"pg_sizes"'),
        ("bytes 2**62", "1024", str(2**62)),
        ("bytes -1", "1024", "-1"),
        ("a node twice", '"nodes": [', '"nodes": [' + json.dumps(document()["nodes"][0]) + ","),
    ):
        yield from _asked(
            f"execution trace: {label}", "et.json", data.decode().replace(old, new).encode()
        )


def _of_xla() -> Iterator[Case]:
    from helpers.xla_profiles import block, number, two_chips

    sound = two_chips()
    for label, data in {
        "a plane of 2**60 B": sound + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x0f",
        "an empty plane": block(1, b""),
        "5,000 empty planes": block(1, b"") * 5000,
        "a line without end": block(
            1, number(1, 1) + block(2, "/device:TPU:0") + block(3, b"\xff" * 40)
        ),
        "a plane in a plane": block(1, block(1, block(1, sound))),
        "a name twice": sound + sound,
        "events of a century": block(
            1,
            block(2, "/device:TPU:0")
            + block(
                3,
                block(2, "XLA Ops") + block(4, number(1, 1) + number(2, 2**62) + number(3, 2**62)),
            ),
        ),
        "metadata of nobody": block(
            1,
            block(2, "/device:TPU:0")
            + block(3, block(2, "XLA Ops") + block(4, number(1, 2**40) + number(3, 5))),
        ),
        "a chip of 10**9": sound.replace(b"/device:TPU:1", b"/device:TPU:9"),
        "no UTF-8": sound.replace(b"all-reduce", b"all-\xff\xfeduce"),
    }.items():
        yield from _asked(f"xplane: {label}", "a.xplane.pb", data)
    heads = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
    ]
    event = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 5, "name": "fusion.1", "args": {}}
    for label, more in {
        "run_id text": [{**event, "args": {"run_id": "x", "hlo_op": "a", "hlo_module": "m(9)"}}],
        "args of lists": [{**event, "args": {"hlo_op": [1], "hlo_module": {"a": 1}}}],
        "a process of 5,000 digits": [{**event, "pid": 1, "name": "9" * 5000}],
        "ts -1e18": [{**event, "ts": -1e18}],
        "dur 1e18": [{**event, "dur": 1e18}],
        "pid a list": [{**event, "pid": [1]}],
        "pid true": [{**event, "pid": True}],
        "device 10**9": [
            {
                "ph": "M",
                "pid": 5,
                "name": "process_name",
                "args": {"name": "/device:TPU:1000000000"},
            },
            {**event, "pid": 5},
        ],
        "device of 5,000 digits": [
            {
                "ph": "M",
                "pid": 5,
                "name": "process_name",
                "args": {"name": "/device:TPU:" + "9" * 5000},
            },
            {**event, "pid": 5},
        ],
        "a name null": [{**event, "name": None}],
        "a thousand devices": [
            {"ph": "M", "pid": n, "name": "process_name", "args": {"name": f"/device:TPU:{n}"}}
            for n in range(1000)
        ],
    }.items():
        data = json.dumps({"traceEvents": [*heads, event, *more]}).encode()
        yield from _asked(f"XLA JSON: {label}", "a.trace.json", data)
    for label, members in {
        "names up": {"../../up/trace.parquet": b"x", "nvtx_gpu_proj_trace/trace.parquet": b"y"},
        "a name of 60,000": {"a" * 60_000: b"x"},
        "parquet of text": {"nvtx_gpu_proj_trace/trace.parquet": b"PAR1" + b"x" * 99 + b"PAR1"},
        "parquet with a huge foot": {
            "nvtx_gpu_proj_trace/trace.parquet": b"PAR1" + struct.pack("<I", 2**31 - 1) + b"PAR1"
        },
        "no name": {"": b"x"},
    }.items():
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        yield from _asked(f"bundle: {label}", "a.zip", out.getvalue())


def _of_goal() -> Iterator[Case]:
    for label, data in {
        "ranks fewer than blocks": GOAL.replace(b"num_ranks 2", b"num_ranks 1"),
        "ranks 0": b"num_ranks 0\n",
        "ranks twice": b"num_ranks 2\n" + GOAL,
        "a rank twice": GOAL + GOAL.partition(b"\n")[2],
        "a rank of 2**62": GOAL.replace(b"rank 1", b"rank 4611686018427387904"),
        "a label twice": GOAL.replace(b"l2: calc 100", b"l1: calc 100"),
        "requires nobody": GOAL.replace(b"requires l1", b"requires l9"),
        "irequires itself": GOAL.replace(b"requires l1", b"irequires l2"),
        "calc -1": GOAL.replace(b"4000", b"-1"),
        "calc 1e3": GOAL.replace(b"4000", b"1e3"),
        "calc of another script": GOAL.replace(b"4000", "٣".encode()),
        "cpu 2**40": GOAL.replace(b"calc 4000", b"calc 4000 cpu 1099511627776"),
        "nic 2**40": GOAL.replace(b"tag 0", b"tag 0 cpu 1 nic 1099511627776"),
        "sends alone": GOAL.replace(b"recv 65536b from 0 tag 0", b"calc 5"),
        "sizes that differ": GOAL.replace(b"recv 65536b", b"recv 8b"),
        "a brace": GOAL.replace(b"}", b""),
        "braces": GOAL + b"}" * 9999,
        "sent to itself": GOAL.replace(b"to 1", b"to 0"),
        "wildcards": GOAL.replace(b"from 0", b"from -1"),
        "a chain of 30,000": b"num_ranks 1\nrank 0 {\nl0: calc 1\n"
        + b"".join(b"l%d: calc 1\nl%d requires l%d\n" % (n, n, n - 1) for n in range(1, 30_000))
        + b"}\n",
        "opposite orders": b"num_ranks 2\nrank 0 {\na: recv 8b from 1 tag 0\nb: send 8b to 1 tag 0\n"
        b"b requires a\n}\nrank 1 {\na: recv 8b from 0 tag 0\nb: send 8b to 0 tag 0\nb requires a\n}\n",
    }.items():
        yield from _asked(f"goal: {label}", "a.goal", data)


def _of_nsys() -> Iterator[Case]:
    for statement in (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = x'00ff'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 1e300",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1000000",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = -1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = 9223372036854775807",
        "UPDATE StringIds SET value = NULL",
        "UPDATE StringIds SET value = x'fffefd'",
        "UPDATE StringIds SET id = id + 1000000",
        "DELETE FROM StringIds",
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = 'x'",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = -9223372036854775807",
        "UPDATE NVTX_EVENTS SET end = NULL",
        "UPDATE NVTX_EVENTS SET eventType = 'x'",
        "UPDATE NVTX_EVENTS SET text = x'00'",
        "UPDATE NVTX_EVENTS SET start = 1e30, end = 1e30",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begin",
        "ALTER TABLE StringIds RENAME TO Strings",
        "CREATE VIEW big AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO K; CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL "
        "AS SELECT K.* FROM K, (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x "
        "FROM n)",
        "ALTER TABLE StringIds RENAME TO S; CREATE VIEW StringIds AS SELECT id, value || hex(zeroblob("
        "100000000)) AS value FROM S",
    ):
        try:
            data = changed_database(statement)
        except Exception as error:  # of another layout of the sample
            raise ValueError(statement) from error
        yield from _asked(f"nsys: {statement[:70]}", "a.sqlite", data)


def _of_folders() -> Iterator[Case]:
    """Directories of ranks that do not go together."""
    ranks = [
        _kineto(STEP, OP, distributedInfo={"rank": rank, "world_size": 4}) for rank in range(4)
    ]
    for label, files in {
        "a rank twice": {"t/a.json": ranks[0], "t/b.json": ranks[0]},
        "ranks that are missing": {"t/a.json": ranks[0], "t/b.json": ranks[3]},
        "worlds that differ": {
            "t/a.json": ranks[0],
            "t/b.json": ranks[1].replace(b'"world_size": 4', b'"world_size": 2'),
        },
        "a rank of another format": {"t/a.json": ranks[0], "t/b.goal": GOAL},
        "2,000 empty files": {f"t/{n}.json": b"" for n in range(2000)},
        "a loop of links": {"t/a.json": ranks[0], "t/b": lambda path: path.symlink_to("..")},
        "a link to /": {"t/a.json": ranks[0], "t/b": lambda path: path.symlink_to("/")},
        "nothing": {"t": lambda path: path.mkdir()},
        "deep folders": {"t/" + "a/" * 200 + "a.json": ranks[0]},
        "an escape in a name": {"t/\x1b]0;x\x07.json": ranks[0], "t/b.json": b"{"},
        "a new line in a name": {"t/a\nb.json": b"{"},
        "a name of no UTF-8": {"t/a\udcff.json": ranks[0]},
        "a card alone": {"t/card.yaml": b"version: 1\n"},
    }.items():
        for words in (
            ("inspect", "t"),
            ("utility", "t", *CLUSTER),
            ("utility", "t", *CLUSTER, "--replicate"),
        ):
            yield Case(f"folder: {label}", words, files)
    sample = SAMPLES / "gloo-ddp-4" / "rank0.json.gz"
    text = gzip.decompress(sample.read_bytes())
    for label, data in {
        "times backwards": text.replace(b'"ts": 1', b'"ts": -1'),
        "durations a thousandfold": text.replace(b'"dur": ', b'"dur": 1000'),
        "no durations": text.replace(b'"dur":', b'"dura":'),
        "no categories": text.replace(b'"cat":', b'"cats":'),
    }.items():
        files = {"t/rank0.json": data}
        for words in (("utility", "t", *CLUSTER), ("utility", "t", *CLUSTER, "--replicate")):
            yield Case(f"folder: {label}", words, files)
