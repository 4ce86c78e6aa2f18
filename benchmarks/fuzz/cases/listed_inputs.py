"""Bad inputs that stand in lists, a JSON value a line: words of commands, and changes of files.

``«text»*N`` in a list stands for N times the text, ``$SAMPLE``, ``$GPU`` and ``$JAX`` for the
samples that ship.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import (
    CLUSTER,
    CLUSTER_YAML,
    GOAL,
    GRAPH,
    NCCL_LOG,
    OWN,
    PLAN,
    REQUESTS,
    SAMPLE,
    SAMPLES,
    STUDY,
    changed,
)

_LISTS = Path(__file__).with_name("listed")
_REPEATED = re.compile(r"«(.*?)»\*([0-9]+)", re.DOTALL)
_SAMPLES = {
    "$SAMPLE": SAMPLE,
    "$GPU": str(SAMPLES / "gpu-dp2-tp4"),
    "$JAX": str(SAMPLES / "jax-cpu-4"),
}
_BESIDE = {
    **{"c.yaml": CLUSTER_YAML, "g.json": GRAPH, "n.log": NCCL_LOG, "plan.yaml": PLAN},
    **{"study.yaml": STUDY, "own.csv": OWN, "p.yaml": b"a: 0-99999999\n", "a.goal": GOAL},
}
_SERVED = ("serving", "llama-3.1-8b", "-c", "hgx-h100", "--seeds", "1", "--requests-count", "20")


def listed_inputs() -> Iterator[Case]:
    """Yield them all."""
    yield from commands()
    yield from cluster_files()
    yield from what_ifs()
    yield from study_files()
    yield from serving_options()
    yield from request_files()


def commands() -> Iterator[Case]:
    """Options of every command."""
    for words in listed("commands"):
        yield Case(f"command: {' '.join(words)[:80]}".replace(SAMPLE, "S"), tuple(words), _BESIDE)


def cluster_files() -> Iterator[Case]:
    """Fields of cluster files."""
    asked = (
        ("utility", SAMPLE, "-c", "c.yaml"),
        ("clusters", "c.yaml", "--bill"),
        ("collective", "all_reduce", "-c", "c.yaml", "-n", "8", "--sizes", "1MiB"),
        ("clusters", "c.yaml", "--links"),
    )
    for number, (old, new) in enumerate(listed("cluster_files")):
        files = {"c.yaml": changed(CLUSTER_YAML, old, new), "g.json": GRAPH}
        yield Case(f"cluster file: {new[-70:]}", asked[number % len(asked)], files)


def what_ifs() -> Iterator[Case]:
    """Texts of what-ifs."""
    for text in listed("what_ifs"):
        words = ("what-if", SAMPLE, *CLUSTER, text)
        yield Case(f"what-if text: {text[:70]}", words, {"c.yaml": CLUSTER_YAML})


def study_files() -> Iterator[Case]:
    """Fields of studies."""
    for old, new in listed("study_files"):
        files = {"study.yaml": changed(STUDY, old, new)}
        words = ("study", "study.yaml", "--no-cache", "-d", "out")
        yield Case(f"study file: {new[-70:]}", words, files)


def serving_options() -> Iterator[Case]:
    """Options of ``serving``."""
    for options in listed("serving"):
        load = ("--concurrency", "2") if "--client" in options else ("--rate", "1/s")
        words = (*_SERVED, *(() if "--concurrency" in options else load), *options)
        yield Case(f"serving option: {' '.join(options)[:70]}", words, {})


def request_files() -> Iterator[Case]:
    """Request traces."""
    texts = [(name, text.encode()) for name, text in listed("requests")]
    texts += [
        ("UTF-16", REQUESTS.decode().encode("utf-16")),
        ("gzip of gzip", gzip.compress(gzip.compress(REQUESTS))),
        ("gzip of 24 MB", gzip.compress(REQUESTS + b"1.5,1,1\n" * 3_000_000, 9)),
    ]
    ask = (*_SERVED[:6], "--resource", "compute", "--requests", "r")
    for name, data in texts:
        yield Case(f"request file: {name}", ask, {"r": data})


def listed(name: str) -> Iterator[Any]:
    """Yield the values of a list, a line each."""
    for line in (_LISTS / f"{name}.jsonl").read_text("utf-8").splitlines():
        yield _whole(json.loads(line))


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(part) for part in value]
    if isinstance(value, dict):
        return {name: _whole(part) for name, part in value.items()}
    for short, path in _SAMPLES.items():
        value = value.replace(short, path)
    return _REPEATED.sub(lambda match: match[1] * int(match[2]), value)
