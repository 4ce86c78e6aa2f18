"""Small sound files of every format, which cases are made from, and the commands that read them."""

import gzip
import io
import json
import pickle
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the builders of small files are the tests'
SAMPLES = ROOT / "traces" / "samples"
SAMPLE = str(SAMPLES / "gloo-ddp-4")
CLUSTER = ("-c", "dgx-a100")


@dataclass(frozen=True)
class Seed:
    """A sound file, its name, and the commands that read it; ``beside`` are files it needs."""

    kind: str
    name: str
    data: bytes
    commands: tuple[tuple[str, ...], ...]
    beside: tuple[tuple[str, bytes], ...] = ()


def _made(make: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        written = make(path)
        path = written if isinstance(written, Path) else path
        if path.is_dir():
            path = sorted(file for file in path.iterdir() if file.is_file())[0]
        return path.read_bytes()


def _trimmed_kineto() -> bytes:
    return (ROOT / "tests/data/kineto_cuda_rank0.json").read_bytes()


def _chakra() -> bytes:
    from helpers.chakra_traces import body, collective, host, node

    return body(
        node(1, us=10), host(2, after=(1,)), collective(3, after=(2,)), node(4, after=(3,), us=5)
    )


def _nsys() -> bytes:
    from helpers.nsys_files import simple

    return _made(simple, "a.sqlite")


def _ndtimeline() -> bytes:
    from helpers.ndtimeline_files import rows, write

    return _made(partial(write, table=rows()), "trace.parquet")


def _rocm() -> dict[str, bytes]:
    from helpers.rocm_files import WRITERS, two_steps

    return {
        form: _made(partial(write, events=two_steps()), "a.db") for form, write in WRITERS.items()
    }


def _flight_recorder() -> dict[str, object]:
    from helpers.flight_dumps import dump, entry, message

    groups = {("0", "tp"): (0, 1), ("1", "dp"): (0, 2)}
    calls = [entry(("0", "tp"), 5), message(("1", "dp"), 3, "send 0->1")]
    return dump(groups, calls, {"0": (5, 4), "1": (3, 2)})


def _execution_trace() -> bytes:
    from helpers.pytorch_et_files import Program

    program = Program()
    program.op("aten::mm")
    program.comm("allreduce", 1024, 2)
    return json.dumps(program.document()).encode()


def _xplane() -> bytes:
    from helpers.xla_profiles import two_chips

    return two_chips()


def _bundle() -> bytes:
    import lzma

    import pyarrow as pa
    import pyarrow.parquet as pq

    from helpers.xla_profiles import block, number

    ops = (
        number(35, 1)
        + block(1, "ar-start")
        + block(2, "all-reduce-start")
        + block(3, number(2, 11) + block(3, bytes([64])))
        + block(49, block(1, bytes([0, 1])))
    )
    program = block(1, block(1, "jit_f") + block(3, block(2, ops) + number(5, 1) + number(6, 1)))
    table = {
        "Name": ["TSL:XlaModule:#hlo_module=jit_f,program_id=4#", "TSL:Thunk:#hlo_op=ar-start#"],
        "Projected Start": [1000, 3000],
        "Projected Duration": [9000, 4000],
        "Orig Start": [500.0, 600.0],
        "Orig Duration": [2000.0, 500.0],
        "TID": [7, 7],
        "RangeId": [1.0, 2.0],
        "ParentId": [None, 1.0],
    }
    out, packed = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table(table), out)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("nvtx_gpu_proj_trace/trace.parquet"), out.getvalue())
        archive.writestr(
            zipfile.ZipInfo("dump/module_0004.jit_f.gpu_after_optimizations.hlo.pb.xz"),
            lzma.compress(program),
        )
    return packed.getvalue()


GOAL = b"""num_ranks 2
rank 0 {
l1: calc 4000
l2: send 65536b to 1 tag 0
l2 requires l1
}
rank 1 {
l1: recv 65536b from 0 tag 0
l2: calc 100
l2 requires l1
}
"""
XLA_JSON = json.dumps(
    {
        "traceEvents": [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
            {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
            {
                "ph": "X",
                "pid": 1,
                "tid": 2,
                "ts": 1,
                "dur": 5,
                "name": "fusion.1",
                "args": {"hlo_module": "m", "hlo_op": "fusion.1"},
            },
            {
                "ph": "X",
                "pid": 1,
                "tid": 2,
                "ts": 8,
                "dur": 5,
                "name": "all-reduce.1",
                "args": {"hlo_module": "m", "hlo_op": "all-reduce.1"},
            },
        ]
    }
).encode()
GRAPH = json.dumps(
    {
        "directed": False,
        "multigraph": False,
        "graph": {},
        "nodes": [{"id": 0, "rank": 0}, {"id": 1, "rank": 1}, {"id": "s"}],
        "edges": [
            {"source": 0, "target": "s", "bandwidth": "50 GB/s", "latency": "1 us"},
            {"source": 1, "target": "s", "bandwidth": "50 GB/s", "latency": "1 us"},
        ],
    }
).encode()
GRAPHML = b"""<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="r" for="node" attr.name="rank" attr.type="int"/>
<key id="b" for="edge" attr.name="bandwidth" attr.type="string"/>
<key id="l" for="edge" attr.name="latency" attr.type="string"/>
<graph edgedefault="undirected"><node id="a"><data key="r">0</data></node>
<node id="b"><data key="r">1</data></node><node id="s"/>
<edge source="a" target="s"><data key="b">50 GB/s</data><data key="l">1 us</data></edge>
<edge source="b" target="s"><data key="b">50 GB/s</data><data key="l">1 us</data></edge>
</graph></graphml>
"""
SMI = b"""\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPXB\t0-31\t0
GPU1\tNV12\t X \tPXB\t0-31\t0
NIC0\tPXB\tPXB\t X 
"""
NCCL_LOG = b"""# nThread 1 nGpus 2 minBytes 1048576 maxBytes 16777216 step: 16(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   1000 on       host device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid   1000 on       host device  1 [0x0f] NVIDIA A100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       65536         16384     float     sum      -1    12.10    5.42    5.42      0    12.00    5.46    5.46      0
     1048576        262144     float     sum      -1    30.10   34.84   34.84      0    30.00   34.95   34.95      0
    16777216       4194304     float     sum      -1   130.10  128.96  128.96      0   130.00  129.06  129.06      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 56.45
"""
OSU = b"""# OSU MPI Allreduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1024                   12.00
1048576               130.00
16777216             1300.00
"""
INSPECTOR = b"".join(
    b'{"header": {"id": "0x7f", "rank": %d, "n_ranks": 8, "nnodes": 1}, "coll_perf": {"coll": "AllRedu'
    b'ce", "coll_sn": %d, "coll_msg_size_bytes": %d, "coll_exec_time_us": 100, "coll_algobw_gbs": %d.0'
    b"}}\n" % (rank, size, 100_000 * size, size)
    for rank in range(2)
    for size in (1, 10, 100)
)
CALLS = b"kind,ranks,size_bytes,time_us\nall_reduce,8,1024,20\nall_reduce,8,1048576,40\nall_reduce,8,16777216,200\n"
CALLS_JSON = b"""[{"kind": "all_reduce", "ranks": 8, "size_bytes": 1024, "time_us": 20},
{"kind": "all_reduce", "ranks": 8, "size_bytes": 1048576, "time_us": 40},
{"kind": "all_reduce", "ranks": 8, "size_bytes": 16777216, "time_us": 200}]"""
INFRA = b"""name: box
devices:
- name: server
  components:
  - {name: xpu, choice: xpu, count: 2}
  - {name: nic, choice: nic, count: 2}
  - {name: sw, choice: switch, count: 1}
  links:
  - {name: NVLink, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 100}}}
  - {name: PCIe, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 32}}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: sw}, scheme: many2many, link: NVLink}
  - {ep1: {component: xpu}, ep2: {component: nic}, scheme: one2one, link: PCIe}
instances:
- {name: host, device: server, count: 1}
"""
MSCCL = (ROOT / "tests/acceptance/inputs/program.xml").read_bytes()
SCHEDULE = (ROOT / "tests/acceptance/inputs/schedule.json").read_bytes()
CLUSTER_YAML = (ROOT / "tests/acceptance/inputs/cluster.yaml").read_bytes()
KERNELS = (ROOT / "tests/acceptance/inputs/kernels.yaml").read_bytes()
MODEL = (ROOT / "tests/acceptance/inputs/model.yaml").read_bytes()
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
).encode()
STUDY = b"""name: links
workloads: [{model: llama-3.1-8b, parallelism: {tp: 2, dp: 2}, training: {micro_batch: 1, global_batch: 8, sequence: 1024}}]
cluster: dgx-a100
space:
  scale_up.bandwidth: {log: [75 GB/s, 2.4 TB/s], steps: 3}
objectives: {step_s: min, scale_up.bandwidth: min}
confirm: none
"""
STUDY = (
    f"name: links\nworkloads: [{{trace: {SAMPLES}/gloo-ddp-4}}]\n".encode()
    + STUDY.split(b"\n", 2)[2]
)
PLAN = b"""model: llama-3.1-8b
parallelism: {tp: 2, dp: 2}
training: {micro_batch: 1, global_batch: 8, sequence: 1024}
accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s}
"""
REQUESTS = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,10\n0.5,200,20\n1.0,50,5\n"
REQUESTS_JSON = b'{"timestamp": 0, "input_length": 100, "output_length": 10}\n{"timestamp": 500, "input_length": 50, "output_length": 5}\n'
PAIRS = b"""trace,cluster,resource,factor,measured_step_s,measured_mad_s,measured_steps
job.0.et,dgx-a100,scale_up.bandwidth,1,0.04,0.001,12
job.0.et,dgx-a100,scale_up.bandwidth,0.5,0.05,0.001,12
"""
STEPS = b"""model,cluster,tp,pp,dp,sequence,global_batch,step_s
llama-3.1-8b,dgx-a100,2,1,4,2048,16,5.0
"""
SERVED = b"""engine,model,machine,tp,isl,osl,concurrency,ttft_ms,tpot_ms
vllm,llama-3.1-8b,hgx-h100,1,1024,128,4,100,10
"""
PLACEMENT = b"job,rank,seat\na:1,0,0\na:1,1,1\na:2,0,2\na:2,1,3\n"
MATRIX = b"0,1,2,3\n1,0,2,3\n1,2,0,3\n1,2,3,0\n"
OWN = b"kernel,shape,seconds\ngemm,m=4096 n=4096 k=4096 dtype=bf16,0.001\n"


def _nccl_xml() -> bytes:
    from helpers.node_drawings import dgx_a100

    return dgx_a100().encode()


def seeds() -> Iterator[Seed]:
    """Yield all of them."""
    small = (("job.0.et", _chakra()),)
    train = ("--tp", "2", "--dp", "2", "--sequence", "512", "--global-batch", "4")
    trace = (("inspect", "F"), ("utility", "F", *CLUSTER))
    yield Seed("kineto", "rank0.json", _trimmed_kineto(), trace)
    yield Seed("kineto-gz", "rank0.json.gz", gzip.compress(_trimmed_kineto(), 1, mtime=0), trace)
    yield Seed("chakra", "job.0.et", _chakra(), trace)
    yield Seed("nsys", "a.sqlite", _nsys(), trace)
    yield Seed("ndtimeline", "trace.parquet", _ndtimeline(), trace)
    for form, data in _rocm().items():
        yield Seed(form, "rank0.db", data, trace)
    dump = _flight_recorder()
    look = (("inspect", "F"),)
    yield Seed("flight-recorder", "dump_0", pickle.dumps(dump, protocol=2), look)
    yield Seed("flight-json", "dump_0.json", json.dumps(dump).encode(), look)
    yield Seed("pytorch-et", "et.json", _execution_trace(), (("inspect", "F"),))
    yield Seed("xplane", "a.xplane.pb", _xplane(), trace)
    yield Seed("xla-json", "a.trace.json.gz", gzip.compress(XLA_JSON, mtime=0), trace)
    yield Seed("bundle", "a.zip", _bundle(), trace)
    yield Seed("goal", "a.goal", GOAL, trace)
    graph = (
        ("topology", "F"),
        ("collective", "all_reduce", "-c", "F, 50 GB/s, 1 us", "-n", "2", "--sizes", "1MiB"),
    )
    yield Seed("graph-json", "g.json", GRAPH, graph)
    yield Seed("graphml", "g.graphml", GRAPHML, graph)
    drawn = ("clusters", "--from-file", "F")
    like = (*drawn, "--like", "dgx-a100")
    yield Seed("nccl-xml", "topo.xml", _nccl_xml(), ((*drawn, "--links"), drawn, like, like))
    yield Seed(
        "nvidia-smi",
        "smi.txt",
        SMI,
        (("clusters", "--from-file", "F", "--like", "dgx-a100", "--links"),),
    )
    yield Seed(
        "infragraph", "infra.yaml", INFRA, (("clusters", "--from-file", "F", "--like", "dgx-a100"),)
    )
    log = (("validate", "F", *CLUSTER), ("calibrate", "--logs", "F", *CLUSTER))
    yield Seed("nccl-tests", "nccl.log", NCCL_LOG, log)
    yield Seed("inspector", "inspector.log", INSPECTOR, log)
    yield Seed("osu", "osu.log", OSU, (("calibrate", "--logs", "F", *CLUSTER, "--ranks", "8"),))
    yield Seed("calls", "calls.csv", CALLS, log)
    yield Seed("calls-json", "calls.json", CALLS_JSON, log)
    forced = ("collective", "all_gather", *CLUSTER, "-n", "2", "--sizes", "1MiB", "--algorithm")
    yield Seed("msccl", "p.xml", MSCCL, ((*forced, "F"),))
    yield Seed("schedule", "s.json", SCHEDULE, ((*forced, "F"),))
    yield Seed(
        "cluster",
        "c.yaml",
        CLUSTER_YAML,
        (
            ("clusters", "F"),
            ("utility", "job.0.et", "-c", "F"),
            ("collective", "all_reduce", "-c", "F", "-n", "8", "--sizes", "1MiB"),
        ),
        beside=small,
    )
    slower = ("utility", "rank0.json", *CLUSTER, "--kernels", "F")
    profile = (("rank0.json", _trimmed_kineto()),)
    yield Seed("kernels", "k.yaml", KERNELS, (slower,), beside=profile)
    yield Seed("model", "m.yaml", MODEL, (("generate", "F", *CLUSTER, *train),))
    yield Seed("config", "config.json", CONFIG, (("generate", "F", *CLUSTER, *train),))
    yield Seed("study", "study.yaml", STUDY, (("study", "F", "-d", "out", "--no-cache"),))
    yield Seed("plan", "plan.yaml", PLAN, (("utility", "F", *CLUSTER), ("inspect", "F")))
    served = ("serving", "llama-3.1-8b", "-c", "hgx-h100", "--requests", "F", "--seeds", "1")
    yield Seed("requests", "r.csv", REQUESTS, (served,))
    yield Seed("requests-json", "r.jsonl", REQUESTS_JSON, (served,))
    yield Seed("pairs", "pairs.csv", PAIRS, (("validate", "F"),), beside=small)
    yield Seed("steps", "steps.csv", STEPS, (("validate", "F"),))
    yield Seed("served", "served.csv", SERVED, (("validate", "--serving", "F"),))
    share = ("share", "a.goal", "a.goal", *CLUSTER, "--no-utilities", "--steps", "2")
    seats = (*share, "--placement", "F")
    yield Seed("placement", "p.csv", PLACEMENT, (seats,), beside=(("a.goal", GOAL),))
    yield Seed(
        "imbalance",
        "i.csv",
        MATRIX,
        (("collective", "all_to_all", *CLUSTER, "-n", "4", "--sizes", "1MiB", "--imbalance", "F"),),
    )
    yield Seed(
        "own-kernels",
        "own.csv",
        OWN,
        (
            (
                "generate",
                "llama-3.2-1b",
                *CLUSTER,
                *train,
                "--framework",
                "megatron",
                "--kernels-from",
                "F",
            ),
        ),
    )


def words_of(command: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Put a file's name where a command has ``F``."""
    return tuple(
        name + word[1:] if word == "F" or word.startswith("F,") else word for word in command
    )


def changed(data: bytes, old: str, new: str) -> bytes:
    """Return a text with another word in it.

    Raises
    ------
    ValueError
        If the text does not have the word.
    """
    if old.encode() not in data:
        raise ValueError(f"{old!r} is not in {data[:40]!r}")
    return data.replace(old.encode(), new.encode())


def changed_database(*statements: str) -> bytes:
    """Write an nsys export with statements run over it."""

    def change(path: Path) -> Path:
        path.write_bytes(_nsys())
        with sqlite3.connect(path) as base:
            for statement in statements:
                base.executescript(statement)
        base.close()
        return path

    return _made(change, "a.sqlite")
