"""Dumps of PyTorch's flight recorder, as pickles and JSON, whose fields are of no sense."""

import gzip
import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER
from helpers.flight_dumps import dump, entry

_NAN = float("nan")
_DEFAULT = ("0", "default_pg")


def _dump(**fields: object) -> dict[str, object]:
    calls = [entry(_DEFAULT, 1), entry(_DEFAULT, 2)]
    return dump({_DEFAULT: range(2)}, calls, {"0": (2, 1)}) | fields


def _call(**fields: object) -> dict[str, object]:
    return _dump(entries=[entry(_DEFAULT, 1, **fields)])


def _packed(content: object, protocol: int = 2) -> bytes:
    return pickle.dumps(content, protocol=protocol)


def _group(ranks: object, name: str = "0", desc: str = "d") -> dict[str, object]:
    return _dump(pg_config={name: {"name": name, "desc": desc, "ranks": ranks}})


def dumps() -> Iterator[Case]:
    """Yield them all."""
    sound = _packed(_dump())
    tables = {
        "deep tuple": b"\x80\x02}X\x07\x00\x00\x00version" + b")" + b"\x85" * 2_000_000 + b"s.",
        "deep key": b"\x80\x02}" + b")" + b"\x85" * 2_000_000 + b"Ns.",
        "deep list": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        "itself": b"\x80\x02]q\x00h\x00a.",
        "itself in version": b"\x80\x02}(X\x07\x00\x00\x00version]q\x00h\x00au.",
        "long int": _packed(_dump(version=1 << 800000)),
        "long int record": _packed(_call(record_id=1 << 800000)),
        "long created": _packed(_call(time_created_ns=1 << 70)),
        "created -": _packed(_call(time_created_ns=-(1 << 62))),
        "created float": _packed(_call(time_created_ns=1.5)),
        "created nan": _packed(_call(time_created_ns=_NAN)),
        "created text": _packed(_call(time_created_ns="9" * 5000)),
        "created inf": _packed(_call(time_created_ns=float("inf"))),
        "seq 2**63": _packed(_call(collective_seq_id=2**63)),
        "seq -": _packed(_call(collective_seq_id=-5)),
        "seq text": _packed(_call(collective_seq_id="٣")),
        "seq same": _packed(_dump(entries=[entry(_DEFAULT, 1)] * 500)),
        "seq far": _packed(_dump(entries=[entry(_DEFAULT, 1), entry(_DEFAULT, 2**62)])),
        "sizes 2**62": _packed(_call(input_sizes=[[2**62, 2**62]])),
        "sizes deep": _packed(_call(input_sizes=[[[1]]])),
        "sizes long": _packed(_call(input_sizes=[[2] * 200000])),
        "sizes many": _packed(_call(input_sizes=[[2]] * 200000, input_dtypes=["Float"] * 200000)),
        "dtype": _packed(_call(input_dtypes=["\x1b[31m"])),
        "dtype long": _packed(_call(input_dtypes=["x" * 900000])),
        "version 2": _packed(_dump(version="2.")),
        "version surrogate": _packed(_dump(version="2.\ud800")),
        "version long": _packed(_dump(version="2." + "9" * 900000)),
        "version 3": _packed(_dump(version="3.0")),
        "version bytes": _packed(_dump(version=b"2.1"), 4),
        "version none": _packed(_dump(version=None)),
        "state": _packed(_call(state="zzz")),
        "state long": _packed(_call(state="z" * 900000)),
        "name send": _packed(_call(profiling_name="nccl:send 0->1")),
        "name send far": _packed(_call(profiling_name="nccl:send 0->" + "9" * 5000)),
        "name send arabic": _packed(_call(profiling_name="nccl:send 0->٣")),
        "name send self": _packed(_call(profiling_name="nccl:send 0->0", is_p2p=True)),
        "name esc": _packed(_call(profiling_name="\x1b]0;x\x07\n")),
        "name nul": _packed(_call(profiling_name="a\0b")),
        "name none": _packed(_call(profiling_name=None)),
        "group none": _packed(_call(process_group=("9", "x"))),
        "group 3": _packed(_call(process_group=("0", "x", "y"))),
        "group text": _packed(_call(process_group="0")),
        "ranks huge": _packed(
            _dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": "[" + "9" * 5000 + "]"}})
        ),
        "ranks text": _packed(_dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": "[x]"}})),
        "ranks many": _packed(
            _dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": str(list(range(200000)))}})
        ),
        "ranks list -": _packed(_dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": [-1]}})),
        "ranks twice": _packed(
            _dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": "[0, 0]"}})
        ),
        "ranks open": _packed(
            _dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": "[" + "1, " * 400000}})
        ),
        "ranks blanks": _packed(
            _dump(pg_config={"0": {"name": "0", "desc": "d", "ranks": "[" + " " * 400000 + "x"}})
        ),
        "ranks none": _packed(_dump(pg_config={})),
        "20000 groups": _packed(
            _dump(
                pg_config={
                    str(i): {"name": str(i), "desc": "d", "ranks": "[0, 1]"} for i in range(20000)
                }
            )
        ),
        "desc esc": _packed(
            _dump(pg_config={"0": {"name": "0", "desc": "\x1b]0;x\x07", "ranks": "[0, 1]"}})
        ),
        "status digits": _packed(_dump(pg_status={"9" * 5000: {}})),
        "status arabic": _packed(_dump(pg_status={"٣": {}})),
        "status super": _packed(_dump(pg_status={"²": {}})),
        "status 2**70": _packed(_dump(pg_status={"0": {"last_enqueued_collective": 2**70}})),
        "status -": _packed(
            _dump(
                pg_status={
                    "0": {"last_enqueued_collective": -(2**62), "last_completed_collective": 2**62}
                }
            )
        ),
        "groups digits": _packed(
            _dump(pg_config={"9" * 5000: {"ranks": "[0]"}}, pg_status={"1": {}}, entries=[])
        ),
        "entries {}": _packed(_dump(entries={})),
        "entries none": _packed(_dump(entries=None)),
        "no entries": _packed(_dump(entries=[])),
        "entries 50000": _packed(_dump(entries=[entry(_DEFAULT, i) for i in range(50000)])),
        "list": _packed([1]),
        "int": _packed(5),
        "none": _packed(None),
        "tuple": _packed((1, 2), 2),
        "set": _packed({1, 2}, 4),
        "bytes": _packed(b"x", 4),
        "object": _packed(_dump(x=Path("x"))),
        "proto 0": _packed(_dump(), 0),
        "proto 1": _packed(_dump(), 1),
        "proto 5": _packed(_dump(), 5),
        "proto 3": _packed(_dump(), 3),
        "cut": sound[:-9],
        "tail": sound + b"x" * 99,
        "twice": sound + sound,
        "empty": b"\x80\x02",
        "stop": b"\x80\x02.",
        "mark": b"\x80\x02(.",
        "marks": b"\x80\x02" + b"(" * 2_000_000 + b".",
        "text 2**63": b"\x80\x04\x8d" + b"\xff" * 8,
        "long 2**31": b"\x80\x02\x8b" + b"\xff" * 4 + b".",
        "long 100 KB key": b"\x80\x02}\x8b" + struct.pack("<I", 100000) + b"\x7f" * 100000 + b"Ns.",
        "nan keys": b"\x80\x02}" + (b"G" + b"\x7f\xf8" + b"\0" * 6 + b"N") * 1 + b"s.",
        "list key": b"\x80\x02}]Ns.",
        "dict key": b"\x80\x02}}Ns.",
        "recall": b"\x80\x02h\x05.",
        "recall far": b"\x80\x02j" + b"\xff" * 4 + b".",
        "memo": b"\x80\x02Nr" + b"\xff" * 4 + b".",
        "bomb": b"\x80\x02]q\x00"
        + b"".join(
            b"](" + b"h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1])
            for i in range(60)
        )
        + b".",
        "bomb in": b"\x80\x02]q\x00(NNNNNNNNe"
        + b"".join(
            b"]q" + bytes([i + 1]) + b"(" + (b"h" + bytes([i])) * 8 + b"e" for i in range(30)
        )
        + b"\x85.",
        "json nest": b'{"version": "2.9", "a": ' + b"[" * 90000 + b"]" * 90000 + b"}",
        "json digits": b'{"version": "2.9", "entries": [], "pg_config": {"'
        + b"9" * 5000
        + b'": {"ranks": "[0]"}}, "pg_status": {"1": {}}}',
        "json": json.dumps(_dump()).encode(),
        "json seq": json.dumps(_call(collective_seq_id=1e300)).encode(),
        "json utf16": json.dumps(_dump()).encode("utf-16"),
        "gz": gzip.compress(sound),
    }
    for label, data in tables.items():
        yield Case(f"dump: {label}", ("inspect", "t"), {"t/nccl_trace_rank_0": data})
        both = {"t/nccl_trace_rank_0": data, "t/nccl_trace_rank_1": sound}
        yield Case(f"dumps: {label}", ("inspect", "t"), both)
    for name in (f"nccl_trace_rank_{'9' * 40}", "nccl_trace_rank_\u0663"):
        yield Case(f"dump: named {name[-5:]}", ("inspect", "t"), {f"t/{name}": sound})
    for words in (("utility", "t", *CLUSTER), ("convert", "t", "o", "--to", "kineto")):
        yield Case(f"dump: {words[0]}", words, {"t/nccl_trace_rank_0": sound})
