"""Options and files together, and what is newest: several jobs, own kernels, pages, kept steps."""

import json
import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from benchmarks.fuzz.cases.listed_inputs import listed
from benchmarks.fuzz.harness import PAGE, Case
from benchmarks.fuzz.seeds import (
    CALLS,
    CLUSTER,
    CLUSTER_YAML,
    CONFIG,
    GOAL,
    GRAPH,
    MODEL,
    OWN,
    PLAN,
    REQUESTS,
    SAMPLE,
    SAMPLES,
    STUDY,
    changed,
    seeds,
    words_of,
)

_FILES = {
    **{"c.yaml": CLUSTER_YAML, "g.json": GRAPH, "own.csv": OWN, "plan.yaml": PLAN},
    **{"study.yaml": STUDY, "model.yaml": MODEL, "config.json": CONFIG, "calls.csv": CALLS},
    **{"r.csv": REQUESTS, "a.goal": GOAL, "empty": b""},
}
_TRAIN = ("--tp", "2", "--dp", "2", "--sequence", "512", "--global-batch", "4")


def combined() -> Iterator[Case]:
    """Yield them all."""
    by_kind = {seed.kind: seed for seed in seeds()}
    beside = {by_kind[kind].name: by_kind[kind].data for kind in ("kineto", "chakra")}
    for words, files in chain.from_iterable(
        map(listed, ("combined", "contradictions", "nonsense"))
    ):
        name = " ".join(words).replace(SAMPLE, "S")[:90]
        texts = {
            # A text, or a sound file and what is replaced in it by what.
            path: text.encode()
            if isinstance(text, str)
            else changed(by_kind[text[0]].data, *text[1:])
            for path, text in files.items()
        }
        yield Case(f"combined: {name}", tuple(words), {**_FILES, **beside, **texts})
    yield from changed_files()
    yield from _own_kernels()
    yield from _seats()
    yield from _ranks_apart()
    yield from pages()
    yield from tampered()


_KINDS = {"smi": "nvidia-smi", "infra": "infragraph"}


def changed_files() -> Iterator[Case]:
    """Sound files in which one value contradicts another, or is none."""
    by_kind = {seed.kind: seed for seed in seeds()}
    for kind, old, new in listed("changed_files"):
        seed = by_kind[_KINDS.get(kind, kind)]
        data = changed(seed.data, old, new)
        words = words_of(seed.commands[0], seed.name)
        yield Case(f"changed: {kind}: {new[:60]}", words, {seed.name: data, **dict(seed.beside)})


def _own_kernels() -> Iterator[Case]:
    head = "kernel,shape,seconds\n"
    gemm = "gemm,m=4096 n=4096 k=4096 dtype=bf16,0.001\n"
    for name, text in (
        ("no rows", head),
        ("a byte order mark", "\ufeff" + head + gemm),
        ("a row twice", head + gemm + gemm.replace("0.001", "0.002")),
        ("0 s", head + gemm.replace("0.001", "0")),
        ("-1 s", head + gemm.replace("0.001", "-1")),
        ("1e-320 s", head + gemm.replace("0.001", "1e-320")),
        ("1e300 s", head + gemm.replace("0.001", "1e300")),
        ("nan s", head + gemm.replace("0.001", "nan")),
        ("m=0", head + gemm.replace("m=4096", "m=0")),
        ("m of 400 digits", head + gemm.replace("m=4096", "m=" + "9" * 400)),
        ("m=-1", head + gemm.replace("m=4096", "m=-1")),
        ("m twice", head + gemm.replace("n=4096", "m=4096")),
        ("no k", head + gemm.replace(" k=4096", "")),
        ("no dtype", head + gemm.replace(" dtype=bf16", "")),
        ("a dtype that is none", head + gemm.replace("bf16", "bf17")),
        ("a kernel that is none", head + gemm.replace("gemm", "zzz")),
        ("a column more", head + gemm.replace("0.001", "0.001,5")),
        ("a quote", head + '"' + gemm),
        ("semicolons", (head + gemm).replace(",", ";")),
        ("100,000 rows", head + gemm * 100_000),
        ("many shapes", head + "".join(gemm.replace("m=4096", f"m={m}") for m in range(1, 20_000))),
        ("a profile without shapes", json.dumps({"traceEvents": [], "distributedInfo": {}})),
        ("a profile of null", json.dumps({"traceEvents": None})),
        ("a list", "[]"),
    ):
        for framework in ("megatron",):
            words = ("generate", "llama-3.1-8b", *CLUSTER, *_TRAIN, "--framework", framework)
            yield Case(
                f"own kernels: {name}",
                (*words, "--kernels-from", "k.csv"),
                {"k.csv": text.encode()},
            )


def _seats() -> Iterator[Case]:
    """Placements of ``share``."""
    share = (
        "share",
        SAMPLE,
        "x2",
        *CLUSTER,
        "--no-utilities",
        "--steps",
        "2",
        "--placement",
        "p.yaml",
    )
    first = "gloo-ddp-4:1: 0-3\n"
    for seats in (
        "[]",
        "{}",
        "null",
        "4-7, 4-7",
        "7-4",
        "4-999999999",
        "4..7",
        "[4, 5, 6, 7.0]",
        "[4, 5, 6, true]",
        "[4, 5, 6, '7']",
        "[4, 5, 6, 1e3]",
        "[4, 5, 6, -1]",
        "[4, 5, 6, 18446744073709551616]",
        "[[4, 5], [6, 7]]",
        "4-5,,6-7",
        "'4-7 '",
        "4-" + "9" * 300,
        "4-7\ngloo-ddp-4:1: 4-7",
        "4-7\nzzz: 8",
        "3-6",
    ):
        text = f"{first}gloo-ddp-4:2: {seats}\n"
        yield Case(f"seats: {seats[:60]}", share, {"p.yaml": text.encode()})


def _ranks_apart() -> Iterator[Case]:
    """GOAL schedules and traces whose ranks do not agree."""
    changes = {
        "a rank more": ("num_ranks 2", "num_ranks 3"),
        "a rank less": ("num_ranks 2", "num_ranks 1"),
        "sizes apart": ("recv 65536b", "recv 65537b"),
        "tags apart": ("from 0 tag 0", "from 0 tag 1"),
        "to itself": ("to 1 tag 0", "to 0 tag 0"),
        "to nobody": ("to 1 tag 0", "to 7 tag 0"),
        "in a circle": ("l2 requires l1\n}\nrank 1", "l2 requires l1\nl1 requires l2\n}\nrank 1"),
        "twice": (
            "l2: send 65536b to 1 tag 0",
            "l2: send 65536b to 1 tag 0\nl3: send 65536b to 1 tag 0",
        ),
        "a rank twice": ("rank 1 {", "rank 0 {"),
        "a label twice": ("l2: calc 100", "l1: calc 100"),
    }
    for name, (old, new) in changes.items():
        data = GOAL.decode().replace(old, new).encode()
        for words in (("utility", "a.goal", *CLUSTER), ("inspect", "a.goal")):
            yield Case(f"ranks: GOAL {name}, {words[0]}", words, {"a.goal": data})


def pages() -> Iterator[Case]:
    """What a page of ``explore`` asks, or another program in its name."""
    many = "&".join("what_if=compute+x1.1" for _ in range(21))
    asked = [
        f"api/within/{budget}"
        for budget in (
            "0 USD",
            "-1 USD",
            "1e300 USD",
            "nan",
            "5",
            "1 GB",
            "9" * 400,
            "%00",
            "1e-300 USD",
        )
    ]
    asked += ["api/within/1000000 USD?cluster=zzz", "api/within/1000000 USD?what_if=compute+x0"]
    asked += [
        f"api/moving/{windows}"
        for windows in ("0", "-1", "1000000000", "9" * 400, "1.5", "%33", "")
    ]
    asked += [
        f"api/moving/10?{query}"
        for query in (
            "scale_up.bandwidth=0",
            "scale_up.bandwidth=1e300",
            "scale_up.bandwidth=1e-300",
            "scale_up.bandwidth=2&scale_up.bandwidth=3",
            "scale_up.bandwidth=%D9%A3",
            "scale_up.bandwidth=" + "9" * 5000,
            "rank=1000000000",
            "rank=-1",
            "rank=x",
            "cluster=/etc/passwd",
            "cluster=../../../etc/passwd",
            "cluster=dgx-a100&cluster=hgx-h100",
            "topology=scale_up%3Dring:1000000",
            "routing=%00",
            "algorithm=all_reduce%3D/etc/passwd",
            "what_if=kernels+%28a%2B%29%2B%24+x2",
            "what_if=%22",
            "=",
            "&&&",
            "%",
            many,
            "zzz=1",
            "x" * 60_000,
        )
    ]
    asked += [
        "api/ranks?rank=99",
        "api/curves?compute=0",
        "api/choices?cluster=zzz",
        "static/../../server.py",
    ]
    for path in asked:
        yield Case(f"page: {path[:80]}", (PAGE, path), {})


def tampered() -> Iterator[Case]:
    """A kept step or answer of which something was changed."""

    def with_rows(change: Callable[[sqlite3.Connection], object]) -> Callable[[Path], None]:
        def fill(path: Path) -> None:
            from experiments.kept_steps import open_kept
            from traces.core.loaded import Options

            path.parent.chmod(0o700)
            open_kept(SAMPLE, Options(), small=0)("median")
            with closing(sqlite3.connect(path)) as base:
                change(base)
                base.commit()

        return fill

    def data(change: Callable[[bytes], object]) -> Callable[[sqlite3.Connection], object]:
        def update(base: sqlite3.Connection) -> None:
            for key, value in base.execute("SELECT key, data FROM kept").fetchall():
                base.execute("UPDATE kept SET data = ? WHERE key = ?", (change(value), key))

        return update

    rng = random.Random(3)
    changes: dict[str, Callable[[sqlite3.Connection], object]] = {
        "no table": lambda base: base.execute("DROP TABLE kept"),
        "another table": lambda base: base.executescript(
            "DROP TABLE kept; CREATE TABLE kept (a INTEGER); INSERT INTO kept VALUES (1)"
        ),
        "a view": lambda base: base.executescript(
            "DROP TABLE kept; CREATE VIEW kept AS SELECT randomblob(32) AS key, 1 AS data"
        ),
        "a trigger": lambda base: base.executescript(
            "CREATE TRIGGER t AFTER INSERT ON kept BEGIN DELETE FROM kept; END"
        ),
        "no digests": lambda base: base.execute("DROP TABLE digests"),
        "digests of nobody": lambda base: base.execute("UPDATE digests SET sha256 = 'zzz'"),
        "a setting of no sense": lambda base: base.execute(
            "INSERT OR REPLACE INTO settings VALUES ('limit', 'zzz')"
        ),
        "a limit of -1": lambda base: base.execute(
            "INSERT OR REPLACE INTO settings VALUES ('limit', '-1')"
        ),
        "uses of text": lambda base: base.execute("UPDATE uses SET used = 'zzz'"),
        "data null": lambda base: base.executescript(
            "CREATE TABLE k2 AS SELECT key, NULL AS data FROM kept; DROP TABLE kept;"
            "ALTER TABLE k2 RENAME TO kept"
        ),
        "data empty": data(lambda _: b""),
        "data a text": data(lambda _: "zzz"),
        "data a number": data(lambda _: 2**62),
        "data half": data(lambda value: value[: len(value) // 2]),
        "data random": data(lambda value: rng.randbytes(len(value))),
        "a bit": data(lambda value: bytes([value[0] ^ 1]) + value[1:]),
        "its last bit": data(lambda value: value[:-1] + bytes([value[-1] ^ 1])),
        "a bomb": data(lambda _: zlib.compress(bytes(300_000_000))),
        "pragma": lambda base: base.execute("PRAGMA user_version = 99"),
    }
    for name, change in changes.items():
        words = ("utility", SAMPLE, *CLUSTER, "--quiet")
        yield Case(f"tampered: {name}", words, {"cache/steps.sqlite": with_rows(change)}, small=0)
    for name, content in (("no database", b"zzz" * 999), ("an empty one", b""), ("a folder", None)):
        yield Case(
            f"tampered: {name}",
            ("utility", str(SAMPLES / "gpu-dp2-tp4"), *CLUSTER, "--quiet"),
            {"cache/steps.sqlite": content if content is not None else Path.mkdir},
            small=0,
        )
