"""The door for files of strangers: what is refused at it, and that nobody goes round it."""

import ast
import gzip
import io
import lzma
import os
import random
import re
import tarfile
import zipfile
from codecs import BOM_UTF8
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.places import ROOT
from simulator.support.errors import LimitError, SettingsError, TraceError, TwofoldError
from simulator.support.input_files import (
    csv_table,
    head_of,
    open_zip,
    parse_json,
    parse_xml,
    read_bytes,
    read_member,
    read_text,
    tar_members,
    unpack,
    unpack_into,
)
from simulator.support.limits import LEAST_MEMORY, LIMITS, Limits, parse_limits

PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")


@pytest.fixture
def tight():
    """Limits that small files exceed."""
    LIMITS.set(Limits(file=1000, unpacked=100_000, ratio=10, members=3, depth=5))
    yield
    LIMITS.set(None)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(TraceError, match=f"cannot be read: it is {kind}"):
            read_bytes(path)
    with pytest.raises(TraceError, match="is a directory"):
        read_bytes(tmp_path)
    with pytest.raises(TraceError, match="no such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(TraceError, match="null byte"):
        read_bytes(Path("a\0b"))


def _zstd(data):
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


PACKERS = {"gzip": gzip.compress, "xz": lzma.compress, "zstd": _zstd}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=3), times=st.integers(1, 900))
def test_what_is_packed_is_read_as_it_was_and_begins_as_it_did(
    tmp_path_factory, pack, parts, times
):
    file = tmp_path_factory.mktemp("packed") / "a"
    plain = b"".join(part * times for part in parts)
    file.write_bytes(b"".join(pack(part * times) for part in parts))
    assert unpack(file) == plain.removeprefix(BOM_UTF8)
    into = file.with_suffix(".plain")
    with file.open("rb") as packed, into.open("wb") as out:
        unpack_into(file, packed, out)
    assert into.read_bytes() == plain


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_the_beginning_of_a_large_packed_file_is_read_alone(tmp_path, pack):
    plain = BOM_UTF8 + random.Random(1).randbytes(1 << 20)
    (tmp_path / "a").write_bytes(pack(plain))
    head = head_of(tmp_path / "a")
    assert len(head) > 60_000
    assert plain[len(BOM_UTF8) :].startswith(head)


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_packed_data_that_are_damaged_cut_short_or_a_bomb_are_refused(tmp_path, pack):
    file = tmp_path / "a"
    packed = pack(random.Random(1).randbytes(5000))
    broken = [packed[:-9], packed[:1000]]
    if pack is not _zstd:  # it was written without a checksum
        broken.append(packed[:40] + bytes(60) + packed[100:])
    for data in broken:
        file.write_bytes(data)
        with pytest.raises(TraceError, match=r"damaged|cut short"):
            unpack(file)
    LIMITS.set(Limits(unpacked=100_000, ratio=10))
    file.write_bytes(pack(bytes(3_000_000)))
    with pytest.raises(LimitError, match="unpacks to"):
        unpack(file)
    LIMITS.set(None)


def test_each_limit_names_itself_and_is_raised_as_it_says(tmp_path, tight):
    file = tmp_path / "a"
    file.write_bytes(bytes(1001))
    with pytest.raises(LimitError, match=r"1001 B, more than the limit of 1000.*--limit file=1001"):
        read_bytes(file)
    file.write_bytes(gzip.compress(bytes(90_000)))
    with pytest.raises(LimitError, match=r"limit of 10: .*--limit ratio=\d+"):
        unpack(file)
    for text in ("[" * 6 + "]" * 6, '{"a":' * 6 + "1" + "}" * 6):
        with pytest.raises(LimitError, match="--limit depth=6"):
            parse_json(text, "a.json", TraceError)
    with pytest.raises(LimitError, match="--limit depth=6"):
        parse_xml("<a>" * 6 + "</a>" * 6, "a.xml", TraceError)
    LIMITS.set(Limits(file=1000, depth=6))
    assert parse_json("[" * 6 + "]" * 6, "a.json", TraceError)


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            info.linkname = "a.json" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_an_archive_gives_plain_files_and_never_more_bytes_than_it_has(tmp_path):
    links = [(f"{n}.json", b"", kind) for n in range(3) for kind in (b"1", b"2")]
    data = tar(("a.json", b"{}", b"0"), ("._a.json", b"x", b"0"), *links)
    assert tar_members(tmp_path, data, ".json") == [("a.json", b"{}")]
    sparse = bytearray(tar(("a.json", bytes(512), b"S")))
    sparse[483:495] = b"%011o\0" % (1 << 32)  # the size that it stands for
    sparse[148:156] = b"        "
    sparse[148:156] = b"%06o\0 " % sum(sparse[:512])
    with pytest.raises(TraceError, match="sparse"):
        tar_members(tmp_path, bytes(sparse), ".json")


@pytest.mark.parametrize("size", [1, 511, 512, 513, 2048])
def test_an_archive_is_cut_short_where_bytes_of_a_member_are_missing(tmp_path, size):
    """What follows the last member may be missing: it says nothing. Blocks have 512 bytes."""
    text = b"x" * size
    first = tar(("a.json", b"{}", b"0"))[:1024]
    whole = first + tar(("b.json", text, b"0"))
    end = len(first) + 512 + size
    for length in (end - 1, len(first) + 512):
        with pytest.raises(TraceError, match=r"b\.json. is cut short"):
            tar_members(tmp_path, whole[:length], ".json")
    padded = whole[: end + -size % 512]
    for data in (padded, whole):
        assert tar_members(tmp_path, data, ".json") == [("a.json", b"{}"), ("b.json", text)]


def test_an_archive_of_too_many_members_is_refused(tmp_path, tight):
    with pytest.raises(LimitError, match="--limit members=4"):
        tar_members(tmp_path, tar(*((f"{n}.json", b"", b"0") for n in range(9))), ".json")
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(4):
            archive.writestr(str(number), "")
    with pytest.raises(LimitError, match="--limit members=4"):
        open_zip(path)


def test_a_member_that_unpacks_without_end_is_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(100_000_000))
    with open_zip(path) as archive, pytest.raises(LimitError, match="limit of 400"):
        read_member(path, archive, "a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"<?xml version='1.0' encoding='no-such'?><a/>", "encoding"),
        (b"<?xml version='1.0' encoding='utf-7'?><a/>", "encoding"),
        (b"<?xml version='1.0' encoding='idna'?><a/>", "not XML"),
        (b"<?xml version='1.0' encoding='zip'?><a/>", "not XML"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "document type"),
        (b"<a>", "not XML"),
        (b"", "not XML"),
        (b"<a>" * 5000, "--limit depth"),
    ],
)
def test_xml_that_is_not_read(text, words):
    with pytest.raises(TwofoldError, match=words):
        parse_xml(text, "a.xml", TraceError)


@pytest.mark.parametrize(
    "text",
    [
        '{"b": 1, "a": {"b": 1, "b": 2}}',
        "[" * 100_000,
        "9" * 5000,
        "{",
        "",
        "\ufeff{}",
        '{"a": ' + "-" * 9,
        "[1e5" + "0" * 5000,
    ],
)
def test_json_that_is_not_read_is_one_line(text):
    with pytest.raises(TwofoldError, match=r"^a\.json: ") as caught:
        parse_json(text, "a.json", TraceError)
    assert "\n" not in str(caught.value)


def test_csv_that_is_not_read():
    for text in ('a,b\n1,"' + "x" * 200_000 + '"\n', 'a\n"x', "a\n1,2\n"):
        with pytest.raises(TraceError, match=r"^a\.csv, line 2: "):
            list(csv_table(text, "a.csv")[1])
    with pytest.raises(TraceError, match=r"a\.csv: 2 columns are called 'b': keep one"):
        csv_table("a,b,,,b\n", "a.csv")


def test_text_that_is_none(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="it is not UTF-8 text"):
        read_text(tmp_path / "a")


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "G", "Gi"]))
def test_a_limit_is_what_its_words_say(number, prefix):
    step = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Gi": 2**30}[prefix]
    assert parse_limits([f"file={number}{prefix}B", " "]).file == number * step
    words = [f"memory={number}{prefix}B"]
    if number * step < LEAST_MEMORY:
        with pytest.raises(SettingsError, match="memory=500MB is the least"):
            parse_limits(words)
    else:
        assert parse_limits(words).memory == number * step


def test_defaults_are_those_of_the_documents():
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.,]+)(?: (GB|GiB))?",
        (ROOT / "docs/reference/limits.md").read_text("utf-8"),
        re.MULTILINE,
    )
    scale = {"": 1, "GB": 10**9, "GiB": 2**30}
    written = {name: float(text.replace(",", "")) * scale[unit] for name, text, unit in rows}
    defaults = asdict(Limits())
    assert {name: written[name] for name in defaults} == defaults


@pytest.mark.parametrize(
    "word", ["memory", "memory=", "mem=1", "memory=-1", "memory=1e9", "depth=1.5", "x" * 90]
)
def test_a_limit_that_is_none(word):
    with pytest.raises(SettingsError, match="write NAME=NUMBER, such as memory=8GB"):
        parse_limits([word])


OWN = {
    "simulator/support/input_files.py",  # the door
    "simulator/support/limits.py",
    "simulator/support/workers.py",  # columns that this program wrote for its own workers
    "experiments/files.py",  # outputs
    "experiments/studies/dask_cluster.py",
    "experiments/studies/store.py",
    "experiments/output/page.py",  # the package's own files
    "experiments/priors/errors.py",
    "collectives/libraries/engine_all_reduce.py",
    "traces/generate/kernel_times/times.py",
    "traces/core/gpu_exports/database.py",  # what the door unpacked into a temporary file
}
"""Modules that open files of their own program."""


OPENING = {"open", "ZipFile", "read_bytes", "read_text"}
RUNNING = {"eval", "exec", "system", "load", "unsafe_load", "full_load"}


@cache
def calls_of(path):
    """Calls by whose names something may be opened or run, with what is called."""
    return [
        (node, ast.unparse(node.func))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in OPENING | RUNNING
    ]


def test_no_reader_goes_round_the_door():
    """Files of the package are read by ``importlib.resources``, all others through one module."""
    round_it = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name in OWN:
                continue
            for node, called in calls_of(path):
                end = called.rpartition(".")[2]
                if called in ("open", "gzip.open", "tarfile.open", "zipfile.ZipFile") or (
                    end in ("read_bytes", "read_text", "open")
                    and "." in called
                    and not called.startswith(("files(", "(files(", "entry.", "self.", "nest."))
                ):
                    round_it.append(f"{name}:{node.lineno}: {called}")
    assert not [
        where
        for where in round_it
        if not where.endswith(
            (": form.open", ": source.read_text", ": connection.open", ": os.open")
        )
    ]


PICKLES = {
    "simulator/support/compiled.py": "names an exception",
    "simulator/support/workers.py": "between processes of this program",
    "experiments/studies/dask_cluster.py": "between processes that the user started",
}


def test_nothing_that_is_read_is_run():
    """No ``eval``, ``exec`` or unsafe loader; pickles only between processes of this program."""
    wrong = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            text = path.read_text("utf-8")
            if "pickle" in text and re.search(r"^\s*(?:import|from) pickle", text, re.MULTILINE):
                wrong += [name] * (name not in PICKLES)
            wrong += [
                f"{name}:{node.lineno}: {called}"
                for node, called in calls_of(path)
                if called in ("eval", "exec", "os.system", "yaml.unsafe_load", "yaml.full_load")
                or (called == "yaml.load" and "_Loader" not in ast.unparse(node))
                or (called == "np.load" and "allow_pickle=True" in ast.unparse(node))
                or any(ast.unparse(keyword) == "shell=True" for keyword in node.keywords)
            ]
    assert not wrong
