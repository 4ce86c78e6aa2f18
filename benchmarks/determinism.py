"""``python -m benchmarks.determinism --seeds 20``: do commands answer the same, to the last bit.

Each command of the reference is asked as JSON, and what it writes is hashed: once as it is, then
with other hash seeds, with four workers, folded, with empty caches of compiled loops, once more
with the cache of answers that it filled, and by other Pythons (``--python PATH``, whose
environments have what the project needs). What says how it was asked (the command, the workers,
whether it was folded) may differ, nothing else. Exit status 1 if anything does.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz.harness import import_all, run_here

ROOT = Path(__file__).parents[1]
LIVE = "traces/live/ddp-cpu-2 -c traces/live/net250.yaml"
GPU = "traces/samples/gpu-dp2-tp4"
TRAIN = "--framework megatron --tp 8 --pp 4 --dp 4 --sequence 2048 --global-batch 32"
COMMANDS: dict[str, str] = {
    "sweep": f"sweep {LIVE} -r scale_out.bandwidth --factors 0.5,1,2,4,8 --figure out/f.svg",
    "curve": f"sweep {LIVE} --curve -r scale_out.bandwidth --range '25 MB/s..250 MB/s'",
    "utility": f"utility {GPU} -c dgx-a100 --nodes 2 --html out/p.html",
    "compare": f"compare {GPU} -c dgx-a100 -c hgx-h100 --nodes 2 --topology scale_out=rail:2x8x1",
    "what-if": f"what-if {GPU} -c dgx-a100 'gemm* x0.5' 'rank 3 compute x1.2' 'overlap none'",
    "faults": f"what-if {GPU} -c perlmutter '1% of links x0.5' '10% of links x0.5 seed 3'",
    "replay": f"replay {GPU} -c dgx-a100 --perfetto out/o.json --parquet out/o.parquet",
    "metrics": f"replay {GPU} --metrics -c dgx-a100",
    "explain": f"explain {GPU} -c dgx-a100 --nodes 2 --utility scale_out.bandwidth",
    "diff": f"diff {GPU} {GPU} -c dgx-a100 --cluster-b hgx-h100",
    "share": f"share {GPU} traces/samples/gloo-ddp-4 -c hgx-h100 --placement striped",
    "inspect": f"inspect {GPU}",
    "calibrate": f"calibrate {GPU} -c dgx-a100 -w out/mine.yaml",
    "validate": f"validate {GPU} -c dgx-a100",
    "pairs": "validate --brief traces/live/pairs.csv",
    "generate": f"generate llama-3.1-70b -c hgx-h100 {TRAIN} -w out/plan.yaml",
    "study": "study experiments/studies/samples/plans.yaml -d out/study",
    "convert": f"convert {GPU} out/chakra --to chakra",
    "package": f"convert {GPU} out/package --to package -c dgx-a100",
    "clusters": "clusters dgx-a100",
    "collective": "collective all_reduce -c hgx-h100 --ranks 16",
    "together": "collective 'all_reduce 64MiB ranks 0-15' 'all_to_all 1MiB ranks 0-31' -c hgx-h100",
    "topology": "topology torus:4x4",
    "throughput": "topology dragonfly:9x4x2@valiant --throughput uniform",
    "serving": "serving llama-3.1-8b -c hgx-h100 --rate 4/s --requests-count 100",
}
"""Each as docs/reference/commands.md has it, on what ships with the project; ``explore`` answers as
``utility``."""
WITH_WORKERS = ("sweep", "utility", "compare", "diff", "study")
WITH_FOLDING = ("generate",)
_FEW = 4
"""Commands for which it is not worth while to import and load all beforehand."""
_ASKED = ("command", "workers", "fold", "folded", "cached", "computed")
"""Fields that say how an answer was asked for, and how many points of it were kept."""
_SIMULATED = (
    "coverage",
    "fold_replicas",
    "engine_check",
    "communication_error",
    "network_prior",
    "trust",
)
"""Fields that say besides how many ranks and calls were simulated."""
_OF_TIME = (".sqlite", ".lock", "-wal", "-shm", "-journal")
"""Endings of files that a study keeps for itself."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to ask the same: words behind the command, environment, another Python.

    ``unlike`` are endings of the parts of an answer that say how it was asked for. ``times``: the
    last answer of so many counts, which finds in the cache what those before it left there.
    """

    name: str
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    cold: bool = False
    unlike: tuple[str, ...] = ()
    times: int = 1


def variants(
    names: Sequence[str], seeds: int, pythons: Sequence[str]
) -> Iterator[tuple[Variant, list[str]]]:
    """Yield the ways in which commands are asked, and which commands."""
    every = list(names)
    for seed in range(1, seeds + 1):
        yield Variant(f"hash seed {seed}", environment={"PYTHONHASHSEED": str(seed)}), every
    parallel = Variant("4 workers", ("--workers", "4"), unlike=(".html",))
    for name in names:  # each by an interpreter of its own: a fork cannot start workers
        if name in WITH_WORKERS:
            yield parallel, [name]
    folded = Variant("folded", ("--fold",), unlike=("answer", ".yaml"))
    yield folded, [n for n in names if n in WITH_FOLDING]
    for python in pythons:
        yield Variant(f"by {python}", python=python), every
    yield Variant("warm caches", times=2), every
    for name in names:
        yield Variant("cold caches", cold=True), [name]


def answered(names: Sequence[str], variant: Variant) -> dict[str, dict[str, str]]:
    """Ask commands of one new interpreter; return digests of the answer and of each file.

    Each is asked in a fork of its own, in a directory of its own, with a cache that is empty.
    """
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        environment = {
            **os.environ,
            **{"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "1700000000", "COLUMNS": "100"},
            **{"PYTHONPATH": str(ROOT)},
            **variant.environment,
        }
        if variant.cold:
            environment["NUMBA_CACHE_DIR"] = str(Path(folder) / "compiled")
        words = {
            name: [*shlex.split(COMMANDS[name]), *variant.words, "-o", "json"] for name in names
        }
        ended = subprocess.run(
            [
                *(variant.python, "-m", "benchmarks.determinism"),
                *("--answer", json.dumps(words), "--times", str(variant.times)),
            ],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        answers: dict[str, dict[str, str]] = json.loads(ended.stdout)
        return answers


def _answer(words: Mapping[str, Sequence[str]], times: int) -> dict[str, dict[str, str]]:
    if len(words) > _FEW:
        import_all()
    answers = {}
    for name, each in words.items():
        for time in range(times):
            answers[name] = _asked(
                Path(f"{time}/{name}").absolute(), each, Path("caches", name).absolute()
            )
    return answers


def _asked(place: Path, words: Sequence[str], cache: Path) -> dict[str, str]:
    """Ask a command in a fork of this process; say what it answers and writes."""
    (place / "out").mkdir(parents=True)
    for part in ("traces", "experiments"):
        (place / part).symlink_to(ROOT / part)
    child = os.fork()
    if child == 0:
        os.chdir(place)
        os.environ["TWOFOLD_CACHE"] = str(cache)
        for number, name in ((1, "answer"), (2, "errors")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        os._exit(run_here(words) & 0xFF)
    _, status = os.waitpid(child, 0)
    if status:
        return {"refused": (place / "errors").read_text("utf-8", "replace")[-300:]}
    answer = json.loads((place / "answer").read_bytes())
    digests = {
        "answer": _digest(_bare(answer)),
        "figures": _digest(_bare(answer, (*_ASKED, *_SIMULATED))),
    }
    for path in sorted((place / "out").rglob("*")):
        if path.is_file() and not path.name.endswith(_OF_TIME):
            digests[str(path.relative_to(place))] = _of_file(path)
    return digests


def _bare(value: Any, without: Sequence[str] = _ASKED) -> Any:
    """Return an answer without what says how it was asked for."""
    if isinstance(value, dict):
        return {key: _bare(part, without) for key, part in value.items() if key not in without}
    return [_bare(part, without) for part in value] if isinstance(value, list) else value


def _of_file(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".json":
        return _digest(_bare(json.loads(data)))
    return hashlib.sha256(data).hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def main() -> int:
    """Ask all, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--python", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=list(COMMANDS))
    parser.add_argument(
        "--cold", action=argparse.BooleanOptionalAction, default=True, help="compile anew, too"
    )
    parser.add_argument("--answer", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        print(json.dumps(_answer(options.answer, options.times)))
        return 0
    first = answered(options.only, Variant("first"))
    refused = [name for name, parts in first.items() if "refused" in parts]
    for name in refused:
        print(f"REFUSED {name}: {first[name]['refused']}", flush=True)
    answering = [name for name in options.only if name not in refused]
    asked, differing = 0, len(refused)
    for variant, names in variants(answering, options.seeds, options.python):
        if names and (options.cold or not variant.cold):
            asked += len(names)
            differing += _differing(first, variant, names)
    print(f"{len(options.only)} commands, {asked} other ways to ask them, {differing} differ")
    return int(differing > 0)


def _differing(
    first: Mapping[str, Mapping[str, str]], variant: Variant, names: Sequence[str]
) -> int:
    """Ask commands in another way; print what differs, and count them."""
    differing = 0
    for name, parts in answered(names, variant).items():
        expected = first[name]
        wrong = [
            part
            for part in {**expected, **parts}
            if expected.get(part) != parts.get(part) and not part.endswith(variant.unlike)
        ]
        if wrong:
            differing += 1
            print(f"DIFFERS {name}, {variant.name}: {', '.join(wrong)}", flush=True)
            if "refused" in parts:
                print(f"    {parts['refused']}", flush=True)
    print(f"{variant.name}: {len(names)} commands", flush=True)
    return differing


if __name__ == "__main__":
    sys.exit(main())
