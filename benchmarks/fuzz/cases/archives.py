"""Archives that give more than they hold."""

import io
import lzma
import zipfile
from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER


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
