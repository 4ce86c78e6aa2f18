"""Chosen bad inputs: what once failed, and what a stranger would try."""

import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import (
    CLUSTER,
    CLUSTER_YAML,
    GRAPH,
    GRAPHML,
    INFRA,
    NCCL_LOG,
    OSU,
    SAMPLES,
    SMI,
    STUDY,
    Seed,
    changed_database,
    seeds,
)

SAMPLE = str(SAMPLES / "gloo-ddp-4")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(900_000)


WHOLE = {
    "a pipe": _fifo,
    "a device": _zero,
    "a link to itself": _loop,
    "a directory": _folder,
    "zeros": _sparse,
    "empty": b"",
    "a NUL": b"\0",
    "random": bytes(range(256)) * 99,
    "UTF-16": "name: x\nb: é\n".encode("utf-16"),
    "a mark alone": b"\xef\xbb\xbf",
    "nested lists": b"[" * 100_000,
    "nested tables": b'{"a":' * 100_000,
    "nested XML": b"<a>" * 100_000,
    "a long line": b"a," * 400_000,
    "a long number": b"9" * 900_000,
    "gzip bomb": gzip.compress(bytes(900_000_000), 9, mtime=0)[:880_000],
    "gzip of gzip": gzip.compress(gzip.compress(bytes(10**8), mtime=0), mtime=0),
    "many gzip members": gzip.compress(b"", mtime=0) * 40_000,
    "xz": lzma.compress(bytes(10**7)),
    "a torn zip": b"PK\x03\x04" + bytes(60),
    "SQLite begun": b"SQLite format 3\0" + bytes(4096),
}


def whole(seed: Seed) -> Iterator[Case]:
    """Something else in place of a file."""
    for label, content in WHOLE.items():
        for number, command in enumerate(seed.commands[:2]):
            words = tuple(
                seed.name + word[1:] if word == "F" or word.startswith("F,") else word
                for word in command
            )
            if number == 0 or label in ("a pipe", "nested lists"):
                yield Case(f"{seed.kind}: {label}", words, {seed.name: content})


def _tar(*members: tuple[str, bytes, bytes, int], end: bool = True) -> bytes:
    """Write a tar whose headers state what they like: name, data, type, size."""
    out = b""
    for name, data, kind, size in members:
        header = bytearray(512)
        header[: len(name)] = name.encode()
        header[100:108] = b"0000644\0"
        header[124:136] = b"%011o\0" % (size % 8**11)
        header[156:157] = kind
        if kind in (b"1", b"2"):
            header[157:163] = b"a.json"
        header[257:265] = b"ustar\x0000"
        if kind == b"S":
            header[257:265] = b"ustar  \0"
            header[386:398] = b"%011o\0" % 0
            header[398:410] = b"%011o\0" % len(data)
            header[483:495] = b"%011o\0" % (size % 8**11)
            header[124:136] = b"%011o\0" % len(data)
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        out += bytes(header) + data + bytes(-len(data) % 512)
    return out + bytes(1024) * end


def archives() -> Iterator[Case]:
    """Archives that give more than they hold."""
    et = b'{"schema": "1.0.1", "pid": 1, "nodes": []}'
    for label, data in {
        "sparse": _tar(("a.json", et + bytes(512 - len(et)), b"S", 4_200_000_000)),
        "sparse, twice": _tar(*[("a.json", et, b"S", 2_100_000_000)] * 2),
        "links": _tar(
            ("a.json", et, b"0", len(et)), *[(f"{n}.json", b"", b"1", 0) for n in range(1700)]
        ),
        "links alone": _tar(*[("a.json", b"", b"2", 4_000_000_000)] * 3),
        "a size of 8 GB": _tar(("a.json", et, b"0", 8**11 - 1)),
        "a negative size": _tar(("a.json", et, b"0", -1)),
        "a device": _tar(("a.json", b"", b"3", 0)),
        "a pipe": _tar(("a.json", et, b"6", 0)),
        "many members": _tar(*[(f"{n}.json", b"", b"0", 0) for n in range(1700)]),
        "a name up": _tar(("../../a.json", et, b"0", len(et))),
        "a pax header": _tar(
            ("x", b"30 size=4000000000000000000000\n", b"x", 31), ("a.json", et, b"0", len(et))
        ),
        "pax sparse": _tar(
            (
                "x",
                b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n28 GNU.sparse.realsize="
                + b"9" * 9
                + b"\n",
                b"x",
                90,
            ),
            ("a.json", et, b"0", len(et)),
        ),
    }.items():
        for command in (("inspect", "et.tar"), ("utility", "et.tar", *CLUSTER)):
            yield Case(f"tar: {label}", command, {"et.tar": data})
    yield from _zips()


def _zips() -> Iterator[Case]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def zipped(**members: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name.replace("__", "/").replace("_p", ".parquet"), data)
        return out.getvalue()

    rows = 2_000_000
    table = {
        "Name": pa.array(["TSL:Thunk:#hlo_op=a#"]).take(pa.array([0] * rows)),
        **{
            name: pa.array([1.0]).take(pa.array([0] * rows))
            for name in (
                "Projected Start",
                "Projected Duration",
                "Orig Start",
                "Orig Duration",
                "TID",
                "RangeId",
                "ParentId",
            )
        },
    }
    out = io.BytesIO()
    pq.write_table(pa.table(table), out, compression="zstd")
    few = io.BytesIO()
    pq.write_table(pa.table({name: column[:2] for name, column in table.items()}), few)
    name = "nvtx_gpu_proj_trace__trace_p"
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(9000):
            archive.writestr(str(number), b"")
    for label, data in {
        "rows without end": zipped(**{name: out.getvalue()}),
        "zeros": zipped(**{name: bytes(500_000_000)}),
        "a program of zeros": zipped(
            **{
                name: few.getvalue(),
                "dump__module_0004.a.after_optimizations.hlo.pb": bytes(300_000_000),
            }
        ),
        "xz of zeros": zipped(
            **{
                name: few.getvalue(),
                "dump__module_0004.a.after_optimizations.hlo.pb.xz": lzma.compress(bytes(10**8)),
            }
        ),
        "nothing known": zipped(a=b"b"),
        "many members": many.getvalue(),
    }.items():
        yield Case(f"zip: {label}", ("inspect", "a.zip"), {"a.zip": data})


def xml() -> Iterator[Case]:
    """Encodings, document types and depth in every format that is XML."""
    from helpers.node_drawings import Box, dgx_a100

    graph = ("topology", "a.graphml")
    node = ("clusters", "--from-nccl", "a.graphml", "--links")
    forced = (
        "collective",
        "all_gather",
        *CLUSTER,
        "-n",
        "2",
        "--sizes",
        "1MiB",
        "--algorithm",
        "a.xml",
    )
    bodies = {graph: GRAPHML.partition(b"\n")[2].decode(), node: dgx_a100(), forced: "<algo/>"}
    encodings = (
        "no-such",
        "utf-7",
        "idna",
        "zip",
        "rot13",
        "base64",
        "hex",
        "unicode_escape",
        "cp932",
        "utf-32",
        "punycode",
        "undefined",
        "UTF-16",
        "ascii",
        "mbcs",
        "x" * 999,
    )
    for command, body in bodies.items():
        name = command[-1] if command[-1].startswith("a.") else "a.graphml"
        for encoding in encodings:
            head = f'<?xml version="1.0" encoding="{encoding}"?>'
            yield Case(f"XML: encoding {encoding[:20]}", command, {name: (head + body).encode()})
        bomb = (
            '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
            + "".join(f'<!ENTITY a{n} "{f"&a{n - 1 or str()};" * 10}">' for n in range(1, 12))
            + "]>"
        )
        yield Case("XML: entities", command, {name: (bomb + "<a>&a11;</a>").encode()})
        yield Case(
            "XML: a file as entity",
            command,
            {name: b'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><a>&a;</a>'},
        )
        yield Case(
            "XML: attributes",
            command,
            {name: ("<system " + " ".join(f'a{n}="1"' for n in range(60_000)) + "/>").encode()},
        )
    box = Box()
    deep = "<pci busid='a' class='0x060400' link_speed='8 GT/s' link_width='16'>" * 5000
    yield Case(
        "XML: 5,000 nested pci",
        node,
        {
            "a.graphml": f"<system><cpu numaid='0' {box.cpu}>{deep}{box.gpu()}{'</pci>' * 5000}</cpu></system>".encode()
        },
    )
    wide = "".join(box.gpu() for _ in range(600))
    yield Case(
        "XML: 600 GPUs",
        node,
        {"a.graphml": f"<system><cpu numaid='0' {box.cpu}>{wide}</cpu></system>".encode()},
    )
    switched = Box()
    wide = "".join(
        switched.gpu('<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>')
        + switched.nic()
        for _ in range(600)
    )
    for command in (
        node,
        (*node[:-1], "--bill"),
        ("clusters", "--from-nccl", "a.graphml", "-o", "json"),
    ):
        yield Case(
            "XML: 600 GPUs on a switch",
            command,
            {"a.graphml": f"<system><cpu numaid='0' {switched.cpu}>{wide}</cpu></system>".encode()},
        )
    for count in ("0", "-1", "1000000000", "9" * 5000, "1.5", "", "-0", "٣"):
        links = f'<nvlink target="fffffff:ffff:ff" count="{count}" tclass="0x068000"/>'
        few = Box()
        text = few.system(few.gpu(links) + few.gpu(links) + few.nic())
        yield Case(f"XML: {count[:9]} links", node, {"a.graphml": text.encode()})
    for speed in ("0", "-1", "9" * 400, "1e9", "1e300", "10000000000000", "nan"):
        few = Box(net=speed)
        text = few.system(few.gpu() + few.gpu() + few.nic())
        yield Case(f"XML: net speed {speed[:9]}", node, {"a.graphml": text.encode()})
    for lanes in ("0", "-1", "1000000000", "9" * 5000):
        few = Box()
        text = few.system(few.gpu(width=lanes) + few.gpu() + few.nic())
        yield Case(f"XML: {lanes[:9]} lanes", node, {"a.graphml": text.encode()})
    for speed in (
        "0 GT/s",
        "1e9 GT/s",
        "9" * 400 + " GT/s",
        "1.2.3 GT/s",
        ". GT/s",
        "999999999 GT/s",
    ):
        few = Box(speed=speed)
        text = few.system(few.gpu() + few.gpu() + few.nic())
        yield Case(f"XML: PCIe at {speed[:9]}", node, {"a.graphml": text.encode()})


def words() -> Iterator[Case]:
    """Words of the command line that ask for more than a machine has, or for nothing sound."""
    huge = "9" * 5000
    for spec in (
        "ring:10000",
        "ring:100000",
        "ring:1000000",
        "ring:9999999",
        "torus:64x64x64",
        "torus:128x128x128",
        "mesh:2000x2000",
        "fat_tree:128",
        "fat_tree:1000",
        "dragonfly:999x99x99",
        "hypercube:20",
        "switch:1000000",
        "fully_connected:3000",
        "leaf_spine:1000x1000x10",
        f"ring:{huge}",
        "ring:0",
        "ring:1",
        "ring:-1",
        "torus:" + "x".join(["2"] * 40),
        "ring:٣",
        "torus:0x4",
        "rail:1000x8x1000",
    ):
        for command in (
            ("topology", spec),
            ("topology", f"{spec}, 50 GB/s, 1 us"),
            (
                "collective",
                "all_reduce",
                "-c",
                f"{spec}, 50 GB/s, 1 us",
                "-n",
                "4",
                "--sizes",
                "1MiB",
            ),
            ("topology", spec, "--throughput", "uniform"),
        ):
            yield Case(f"spec {spec[:30]}", command, {})
    for quantities in (
        "0 GB/s, 1 us",
        "1e-320 B/s, 1 us",
        "50 GB/s, 1e300 s",
        "1e300 GB/s, 1 us",
        "-1 GB/s, 1 us",
        "nan GB/s, 1 us",
        "50 GB/s, -1 us",
        f"{huge} B/s, 1 us",
        "50 GB/s, 1e-300 s",
        "1 B/s, 1 s",
        "1e-9 B/s, 0 s",
    ):
        yield Case(
            f"cables {quantities[:30]}",
            (
                "collective",
                "all_reduce",
                "-c",
                f"torus:2x2, {quantities}",
                "-n",
                "4",
                "--sizes",
                "1MiB",
            ),
            {},
        )
        yield Case(
            f"cables {quantities[:30]}", ("utility", SAMPLE, "-c", f"ring:4, {quantities}"), {}
        )
        yield Case(f"cables {quantities[:30]}", ("topology", f"torus:2x2, {quantities}"), {})
    for sizes in (
        "1e30",
        "1e308 B",
        "0 B",
        "-1 B",
        f"{huge}B",
        "1B..1e300B",
        "1KiB..1000000TiB",
        "nan",
        "1 B",
        "1e-320 B",
        ",".join(["1MiB"] * 5000),
        "1B..1PB",
    ):
        yield Case(
            f"sizes {sizes[:20]}",
            ("collective", "all_reduce", *CLUSTER, "-n", "8", "--sizes", sizes),
            {},
        )
    for ranks in ("1000000000", "9223372036854775808", huge, "100000", "0", "4000000"):
        yield Case(
            f"ranks {ranks[:20]}",
            ("collective", "all_reduce", *CLUSTER, "-n", ranks, "--sizes", "1MiB"),
            {},
        )
        yield Case(
            f"ranks of a log {ranks[:20]}",
            ("calibrate", "--logs", "o.log", *CLUSTER, "--ranks", ranks),
            {"o.log": OSU},
        )
        yield Case(
            f"ranks of a bill {ranks[:20]}", ("clusters", "dgx-a100", "--bill", "-n", ranks), {}
        )
        yield Case(
            f"ranks of links {ranks[:20]}", ("clusters", "dgx-a100", "--links", "-n", ranks), {}
        )
    for change in (
        "scale_up.bandwidth x1e308",
        "scale_up.bandwidth x0",
        "scale_up.bandwidth x-1",
        "compute xnan",
        "rank 9223372036854775808 compute x2",
        f"rank {huge} compute x2",
        "rank 0-999999999 compute x2",
        "*" * 5000 + " x0.5",
        "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b x0.5",
        "fuse " + "*?" * 2000,
        "replicas x1000000000",
        "replicas x1e9",
        "scale_up.size x1000000000",
        "all_reduce bytes x1e300",
        "gaps x1e300",
        "compute x1e-320",
        "scale_up.latency x1e300",
        "\x1b]0;x\x07 x2",
        "rank 0 host x" + "9" * 400,
        "[" * 3000 + " x2",
        "(" * 3000 + " x2",
        "replicas x100000",
        "+".join(["compute x2"] * 900),
    ):
        for command in (
            ("what-if", SAMPLE, *CLUSTER, change),
            ("utility", SAMPLE, *CLUSTER, "--what-if", change),
        ):
            yield Case(f"what-if {change[:30]}", command, {})
    yield Case(
        "900 what-ifs",
        ("what-if", SAMPLE, *CLUSTER, *[f"compute x{1 + n / 1000}" for n in range(900)]),
        {},
    )
    yield Case(
        "100 stacked what-ifs",
        (
            "utility",
            SAMPLE,
            *CLUSTER,
            *[
                w
                for n in range(100)
                for w in ("--what-if", f"rank {n % 4} compute x{1 + n / 1000}")
            ],
        ),
        {},
    )
    for factor in ("1e308", "0", "-1", "nan", "1e-320", "inf", "1e30"):
        yield Case(f"factor {factor}", ("utility", SAMPLE, *CLUSTER, "--factor", factor), {})
        yield Case(
            f"factors {factor}",
            ("sweep", SAMPLE, *CLUSTER, "-r", "scale_up.bandwidth", "--factors", f"1,{factor}"),
            {},
        )
    yield Case(
        "a million factors",
        (
            "sweep",
            SAMPLE,
            *CLUSTER,
            "-r",
            "scale_up.bandwidth",
            "--factors",
            ",".join(["2"] * 50_000),
        ),
        {},
    )
    for option in (
        ("--tp", "1000000000"),
        ("--layers", huge),
        ("--micro-batch", "1000000000"),
        ("--sequence", "1000000000"),
        ("--global-batch", "1000000000"),
        ("--dp", "1000000"),
        ("--dp", "100000"),
        ("--pp", "1000000"),
        ("--sequence", "9223372036854775808"),
        ("--launch", "1e300 s"),
        ("--compute-efficiency", "1e-320"),
        ("--memory-efficiency", "nan"),
        ("--expert-imbalance", "zipf:1e308"),
        ("--slow-down", "1e308"),
    ):
        yield Case(
            f"generate {option[0]} {option[1][:20]}",
            ("generate", "llama-3.1-8b", *CLUSTER, *option),
            {},
        )
    for option in (
        ("--rate", "1e308/s"),
        ("--rate", "1e-320/s"),
        ("--rate", "0/s"),
        ("--concurrency", "1000000000"),
        ("--input", "1000000000"),
        ("--output-tokens", "1000000000"),
        ("--requests-count", "1000000000"),
        ("--requests-count", "3000000"),
        ("--tp", "1000000000"),
        ("--max-tokens", "1"),
        ("--blocks", "1"),
        ("--seeds", "1000000000"),
        ("--rate", "1/s", "--slo", "ttft 1e300 s"),
        ("--rate", "nan"),
    ):
        rate = () if option[0] in ("--rate", "--concurrency") else ("--rate", "1/s")
        yield Case(
            f"serving {option}"[:60],
            ("serving", "llama-3.1-8b", "-c", "hgx-h100", *rate, *option),
            {},
        )
    for placement in ("packed", "random"):
        yield Case(
            "copies",
            ("share", f"{SAMPLE}x1000000000", SAMPLE, "-c", "dgx-a100", "--placement", placement),
            {},
        )
    for limit in (
        "memory",
        "memory=" + huge,
        "memory=1",
        "depth=0",
        "items=0",
        "file=10",
        "ratio=0",
    ):
        yield Case(f"limit {limit[:20]}", ("inspect", SAMPLE, "--limit", limit), {})


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


def networks() -> Iterator[Case]:
    """Clusters, graphs, matrices and infrastructures with numbers of no sense."""
    for count in (
        "NV0",
        "NV" + "9" * 5000,
        "NV1000000000",
        "NV-1",
        "NV",
        "NV٣",
        "NV00000012",
        "NV12.5",
    ):
        data = SMI.replace(b"NV12", count.encode())
        yield Case(
            f"smi: {count[:12]}",
            ("clusters", "--from-nvidia-smi", "s.txt", "--like", "dgx-a100", "--links"),
            {"s.txt": data},
        )
    gpus = [f"GPU{n}" for n in range(600)]
    matrix = (
        "\t"
        + "\t".join(gpus)
        + "\n"
        + "".join(
            name + "\t" + "\t".join("X" if name == other else "SYS" for other in gpus) + "\n"
            for name in gpus
        )
    )
    yield Case(
        "smi: 600 GPUs",
        ("clusters", "--from-nvidia-smi", "s.txt", "--like", "dgx-a100", "--links"),
        {"s.txt": matrix.encode()},
    )
    for number in (
        "1000000000",
        "0",
        "-1",
        "1e9",
        "9" * 400,
        "true",
        "2.5",
        "'2'",
        "100000000000000000000",
        "10000000",
    ):
        for part in ("count: 2}", "count: 1}"):
            data = INFRA.replace(part.encode(), f"count: {number}}}".encode())
            yield Case(
                f"InfraGraph: {part[:8]} {number[:12]}",
                ("clusters", "--from-infragraph", "i.yaml", "--like", "dgx-a100"),
                {"i.yaml": data},
            )
    nested = INFRA.replace(b"choice: switch, count: 1", b"choice: device, count: 1").replace(
        b"name: sw", b"name: server"
    )
    yield Case(
        "InfraGraph: a cycle",
        ("clusters", "--from-infragraph", "i.yaml", "--like", "dgx-a100"),
        {"i.yaml": nested},
    )
    levels = (
        "name: box\ndevices:\n"
        + "".join(
            f"- name: d{n}\n  components:\n  - {{name: d{n + 1}, choice: device, count: 10}}\n  edges: []\n"
            for n in range(9)
        )
        + "- name: d9\n  components:\n  - {name: xpu, choice: xpu, count: 10}\n  edges: []\ninstances:\n- {name: h, device: d0, count: 1}\n"
    )
    yield Case(
        "InfraGraph: ten levels of ten",
        ("clusters", "--from-infragraph", "i.yaml", "--like", "dgx-a100"),
        {"i.yaml": levels.encode()},
    )
    for bandwidth in (
        "1e-320 B/s",
        "1e300 GB/s",
        "0 GB/s",
        "-5 GB/s",
        "1e30 B/s",
        "nan GB/s",
        "9" * 400 + " GB/s",
        "1 B/s",
    ):
        data = CLUSTER_YAML.replace(b"200 GB/s", bandwidth.encode())
        for command in (
            ("utility", SAMPLE, "-c", "c.yaml"),
            ("clusters", "c.yaml"),
            ("collective", "all_reduce", "-c", "c.yaml", "-n", "8", "--sizes", "1MiB"),
        ):
            yield Case(f"cluster: {bandwidth[:12]}", command, {"c.yaml": data})
        data = GRAPH.replace(b"50 GB/s", bandwidth.encode())
        yield Case(f"graph: {bandwidth[:12]}", ("topology", "g.json"), {"g.json": data})
        yield Case(
            f"graph: {bandwidth[:12]}",
            ("collective", "all_reduce", "-c", "g.json", "-n", "2", "--sizes", "1MiB"),
            {"g.json": data},
        )
    for latency in ("1e300 s", "1e12 s", "-1 us", "1e-320 s", "nan us", "1000000000000000000000 s"):
        data = CLUSTER_YAML.replace(b"0.7 us", latency.encode())
        yield Case(
            f"cluster: {latency[:12]}", ("utility", SAMPLE, "-c", "c.yaml"), {"c.yaml": data}
        )
        data = GRAPH.replace(b"1 us", latency.encode())
        yield Case(
            f"graph: {latency[:12]}",
            ("collective", "all_reduce", "-c", "g.json", "-n", "2", "--sizes", "1MiB"),
            {"g.json": data},
        )
    for field, value in (
        ("nodes: 8", "nodes: 1000000000"),
        ("size: 4", "size: 1000000000"),
        ("nics_per_node: 2", "nics_per_node: 1000000000"),
        ("ranks_per_node: 4", "ranks_per_node: 1000000000"),
        ("nodes: 8", "nodes: 10000000000000000000000"),
        ("topology: switch, nics", "topology: ring, nics"),
        ("efficiency: 0.8", "efficiency: 1e-320"),
        ("efficiency: 0.8", "efficiency: nan"),
        ("peak: {bf16: 312 TFLOP/s}", "peak: {bf16: 1e-300 FLOP/s}"),
        ("memory_bandwidth: 2 TB/s", "memory_bandwidth: 1e-320 B/s"),
        ("nodes: 8", "nodes: .inf"),
        ("nodes: 8", "nodes: 8.5"),
    ):
        data = CLUSTER_YAML.replace(field.encode(), value.encode())
        for command in (
            ("utility", SAMPLE, "-c", "c.yaml"),
            ("clusters", "c.yaml", "--links"),
            ("clusters", "c.yaml", "--bill"),
            ("collective", "all_reduce", "-c", "c.yaml", "-n", "4", "--sizes", "1MiB"),
        ):
            yield Case(f"cluster: {value[:40]}", command, {"c.yaml": data})
    nodes = [{"id": n, "rank": n} for n in range(3000)]
    ring = [
        {"source": n, "target": (n + 1) % 3000, "bandwidth": "1 GB/s", "latency": "1 us"}
        for n in range(3000)
    ]
    big = json.dumps({"nodes": nodes, "edges": ring}).encode()
    yield Case("graph: 3,000 ranks in a ring", ("topology", "g.json"), {"g.json": big})
    for node in (
        {"id": [[[1]]], "rank": 0},
        {"id": None, "rank": 0},
        {"id": 1e400, "rank": 0},
        {"id": {"a": 1}, "rank": 0},
        {"id": 1, "rank": 2**63},
        {"id": 1, "rank": -1},
        {"id": 1, "rank": 1e300},
        {"id": [1, [2]] * 999, "rank": 0},
    ):
        data = json.dumps(
            {
                "nodes": [node, {"id": "b", "rank": 1}],
                "edges": [{"source": "b", "target": "b", "bandwidth": "1 GB/s", "latency": "1 us"}],
            }
        )
        yield Case(
            f"graph: node {str(node)[:40]}", ("topology", "g.json"), {"g.json": data.encode()}
        )
    keys = GRAPHML.replace(b'attr.type="int"', b'attr.type="%s"')
    for kind in ("double", "boolean", "nothing", "long", "float", "string", ""):
        yield Case(
            f"GraphML: type {kind}", ("topology", "g.graphml"), {"g.graphml": keys % kind.encode()}
        )
    for rank in ("1e999", "9" * 5000, "-1", "x", "2147483648", ""):
        yield Case(
            f"GraphML: rank {rank[:12]}",
            ("topology", "g.graphml"),
            {"g.graphml": GRAPHML.replace(b'"r">1<', b'"r">' + rank.encode() + b"<")},
        )


def logs() -> Iterator[Case]:
    """Logs and tables with cells of no sense."""
    for label, data in {
        "OSU size of 400 digits": OSU.replace(b"1024", b"9" * 400),
        "OSU size of 5,000 digits": OSU.replace(b"1024", b"9" * 5000),
        "OSU time 1e300": OSU.replace(b"12.00", b"1e300"),
        "OSU time 1e-320": OSU.replace(b"12.00", b"1e-320"),
        "nccl rank 1e9": NCCL_LOG.replace(b"Rank  1", b"Rank  1000000000"),
        "nccl size 1e30": NCCL_LOG.replace(b"1048576 ", b"1" + b"0" * 30 + b" "),
        "nccl time": NCCL_LOG.replace(b"30.10", b"1e300"),
        "nccl group": NCCL_LOG.replace(b"Group  0", b"Group  " + b"9" * 5000),
        "nccl device": NCCL_LOG.replace(b"[0x07]", b"[0x" + b"f" * 9000 + b"]"),
        "nccl colours": NCCL_LOG.replace(b"#", b"\x1b[" + b"0;" * 9000 + b"m#"),
        "blanks": b" " * 900_000 + b"x",
        "labels": b"1:" * 300_000,
        "brackets": b"[1,0]" * 150_000,
        "hosts": b"a" * 300_000 + b": # nThread",
        "dates": b"Mon Nov  1 00:00:00 2026" * 20_000,
        "words": b"host-" * 100_000 + b"[0]: 1 1",
    }.items():
        for command in (
            ("calibrate", "--logs", "a.log", *CLUSTER, "--ranks", "8"),
            ("validate", "a.log", *CLUSTER),
        ):
            yield Case(f"log: {label}", command, {"a.log": data})
    for seed in seeds():
        if seed.kind in (
            "calls",
            "requests",
            "pairs",
            "steps",
            "served",
            "placement",
            "imbalance",
            "own-kernels",
        ):
            for label, data in {
                "a long cell": seed.data + b'"' + b"x" * 200_000 + b'"\n',
                "an open quotation": seed.data + b'"' + b"x\n" * 99,
                "a wide row": seed.data + b"1," * 9000 + b"\n",
                "no row": seed.data.split(b"\n")[0] + b"\n",
                "columns twice": seed.data.replace(
                    b"\n", b"," + seed.data.split(b"\n")[0] + b"\n", 1
                ),
                "NUL": seed.data + b"\0\n",
                "a lone return": seed.data.replace(b"\n", b"\r"),
            }.items():
                words = tuple(
                    seed.name + word[1:] if word == "F" or word.startswith("F,") else word
                    for word in seed.commands[0]
                )
                yield Case(f"{seed.kind}: {label}", words, {seed.name: data})


def schedules() -> Iterator[Case]:
    """Schedules that ask for more than a machine has."""
    forced = (
        "collective",
        "all_gather",
        *CLUSTER,
        "-n",
        "2",
        "--sizes",
        "1MiB",
        "--algorithm",
        "s.json",
    )
    sound = {
        "kind": "all_gather",
        "algorithm": "x",
        "ranks": 2,
        "chunks": 2,
        "parts": 1,
        "steps": [{"reduce": False, "transfers": [[0, 1, 0, 1], [1, 0, 1, 1]]}],
    }
    for field, value in (
        ("ranks", 2147483647),
        ("chunks", 2147483647),
        ("parts", 2147483647),
        ("ranks", 2**63),
        ("chunks", 10**400),
        ("algorithm", "a" * 90_000),
        ("kind", ""),
        ("ranks", 100_000),
        ("chunks", 100_000_000),
    ):
        yield Case(
            f"schedule: {field} {str(value)[:12]}",
            forced,
            {"s.json": json.dumps({**sound, field: value}).encode()},
        )
    for field, value in (
        ("repeats", 2147483647),
        ("shift", 2147483647),
        ("cycle", 2147483647),
        ("transfers", [[0, 1, 0, 2147483647]]),
        ("transfers", [[0, 2147483647, 0, 1]]),
        ("transfers", [[0, 1, 2147483647, 1]]),
        ("transfers", [[0, 1, -1, 1]]),
        ("transfers", [[0, 1, 0, 0]]),
        ("repeats", 1_000_000),
    ):
        step = {**sound["steps"][0], field: value}
        for more in ({}, {"chunks": 2147483647}):
            yield Case(
                f"schedule: step {field} {value}",
                forced,
                {"s.json": json.dumps({**sound, **more, "steps": [step]}).encode()},
            )
    algo = (
        '<algo name="a" coll="allgather" ngpus="{n}" nchunksperloop="{c}" inplace="0">{gpus}</algo>'
    )
    step = '<step s="0" type="{t}" srcbuf="i" srcoff="{o}" dstbuf="o" dstoff="0" cnt="{k}" depid="-1" deps="-1"/>'
    gpu = '<gpu id="0"><tb id="0" send="1" recv="-1" chan="0">{s}</tb></gpu><gpu id="1"/>'
    for label, text in {
        "chunks": algo.format(n=2, c=999_999_999, gpus=gpu.format(s="")),
        "cnt": algo.format(n=2, c=2, gpus=gpu.format(s=step.format(t="cpy", o=0, k=1048576))),
        "off": algo.format(n=2, c=2, gpus=gpu.format(s=step.format(t="cpy", o=999_999_999, k=1))),
        "gpus": algo.format(n=999_999_999, c=2, gpus=""),
        "many": algo.format(n=5000, c=5000, gpus="".join(f'<gpu id="{n}"/>' for n in range(5000))),
    }.items():
        yield Case(f"MSCCL: {label}", (*forced[:-1], "a.xml"), {"a.xml": text.encode()})


def studies() -> Iterator[Case]:
    """State of studies that somebody else wrote."""
    ask = ("study", "study.yaml", "-d", "out", "--no-cache")
    for label, files in {
        "a pipe as lock": {"out/.lock": _fifo},
        "a device as lock": {"out/.lock": _zero},
        "a directory as lock": {"out/.lock": _folder},
        "a link as results": {
            "elsewhere": _folder,
            "out/results": lambda path: path.symlink_to("../elsewhere"),
        },
        "a file as results": {"out/results": b"x"},
        "an index of text": {"out/index.sqlite": b"x" * 4096},
        "an index as pipe": {"out/index.sqlite": _fifo},
        "a pipe as study": {"out/study.yaml": _fifo},
        "a link as lock": {
            "victim": b"kept",
            "out/.lock": lambda path: path.symlink_to("../victim"),
        },
    }.items():
        yield Case(f"study: {label}", ask, {"study.yaml": STUDY, "out/study.yaml": STUDY, **files})
        yield Case(f"study read: {label}", ("study", "out"), {"out/study.yaml": STUDY, **files})
    for change in (
        (b"steps: 3", b"steps: 1000000000"),
        (b"75 GB/s", b"1e-320 B/s"),
        (b"2.4 TB/s", b"1e300 TB/s"),
        (b"steps: 3", b"steps: 0"),
        (b"dgx-a100", b"/etc/passwd"),
        (b"dgx-a100", b"/dev/zero"),
        (b"name: links", b"name: " + b"x" * 9000),
        (b"steps: 3", b"steps: 100000000000000000000"),
        (b"confirm: none", b"confirm: none\nconstraints: ['" + b"(" * 5000 + b"']"),
        (b"confirm: none", b"confirm: none\nconstraints: ['9**9**9**9 > 1']"),
        (b"confirm: none", b"confirm: none\nconstraints: ['__import__(\"os\")']"),
        (b"confirm: none", b"confirm: none\nsampler: {points: 1000000000}"),
    ):
        yield Case(f"study: {change[1][:40]!r}", ask, {"study.yaml": STUDY.replace(*change)})


def damaged(seed: Seed) -> Iterator[Case]:
    """Cut short, and packed again."""
    for size in (1, 2, 4):
        cut = seed.data[: len(seed.data) * size // 5]
        words = tuple(
            seed.name + word[1:] if word == "F" or word.startswith("F,") else word
            for word in seed.commands[0]
        )
        yield Case(f"{seed.kind}: cut to {size}/5", words, {seed.name: cut})
        yield Case(
            f"{seed.kind}: cut gzip {size}/5",
            words,
            {seed.name: gzip.compress(seed.data)[: 20 * size]},
        )


def chosen() -> Iterator[Case]:
    """Yield all of them."""
    for seed in seeds():
        yield from whole(seed)
        yield from damaged(seed)
    for cases in (archives, xml, traces, networks, logs, schedules, studies, words):
        yield from cases()
