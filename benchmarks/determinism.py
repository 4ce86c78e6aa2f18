"""``python -m benchmarks.determinism --seeds 20``: do commands answer the same, to the last bit.

Each command of the README is asked as JSON, and what it writes is hashed: once as it is, then with
other hash seeds, with four workers, without folding, with empty caches of compiled loops and of
answers, and by other Pythons (``--python PATH``, whose environments have what the project needs).
What says how it was asked (the command, the workers, whether it was folded) may differ, nothing
else. Exit status 1 if anything does.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIVE = "traces/live/ddp-cpu-2 -c traces/live/net250.yaml"
GPU = "traces/samples/gpu-dp2-tp4"
TRAIN = "--framework megatron --tp 8 --pp 4 --dp 4 --sequence 2048 --global-batch 32"
COMMANDS: dict[str, str] = {
    "sweep": f"sweep {LIVE} -r scale_out.bandwidth --factors 0.5,1,2,4,8 --figure out/f.svg",
    "curve": f"sweep {LIVE} --curve -r scale_out.bandwidth --range '25 MB/s..250 MB/s'",
    "utility": f"utility {GPU} -c dgx-a100 --nodes 2 --html out/p.html",
    "compare": f"compare {GPU} -c dgx-a100 -c hgx-h100 --topology scale_out=rail:1x2",
    "what-if": f"what-if {GPU} -c dgx-a100 'gemm* x0.5' 'rank 3 compute x1.2' 'overlap none'",
    "faults": f"what-if {GPU} -c perlmutter '1% of links x0.5' '10% of links x0.5 seed 3'",
    "replay": f"replay {GPU} -c dgx-a100 --perfetto out/o.json --parquet out/o.parquet",
    "metrics": f"replay {GPU} --metrics -c dgx-a100",
    "explain": f"explain {GPU} -c dgx-a100 --utility scale_out.bandwidth",
    "diff": f"diff {GPU} {GPU} -c dgx-a100 --cluster-b hgx-h100",
    "share": f"share {GPU} traces/samples/gloo-ddp-4 -c hgx-h100 --placement striped",
    "inspect": f"inspect {GPU}",
    "calibrate": f"calibrate {GPU} -c dgx-a100 -w out/mine.yaml",
    "validate": f"validate --brief {GPU} -c dgx-a100",
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
"""Each as the README has it, on what ships with the project; ``explore`` answers as ``utility``."""
WITH_WORKERS = ("sweep", "utility", "compare", "diff", "pairs", "study")
WITH_FOLDING = ("generate",)
_ASKED = ("command", "workers", "fold", "folded")
"""Fields that say how an answer was asked for."""
_OF_TIME = (".sqlite", ".lock", "-wal", "-shm", "-journal")
"""Endings of files that a study keeps for itself."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to ask the same: words behind the command, environment, another Python."""

    name: str
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    cold: bool = False


def variants(name: str, seeds: int, pythons: list[str]) -> Iterator[Variant]:
    """Yield the ways in which a command is asked."""
    for seed in range(1, seeds + 1):
        yield Variant(f"hash seed {seed}", environment={"PYTHONHASHSEED": str(seed)})
    if name in WITH_WORKERS:
        yield Variant("4 workers", ("--workers", "4"))
    if name in WITH_FOLDING:
        yield Variant("folded", ("--fold",))
    yield Variant("cold caches", cold=True)
    for python in pythons:
        yield Variant(f"by {python}", python=python)


def answered(name: str, variant: Variant) -> dict[str, str]:
    """Ask a command in a directory of its own; return a digest of the answer and of each file."""
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        place = Path(folder)
        (place / "out").mkdir()
        for part in ("traces", "experiments"):
            (place / part).symlink_to(ROOT / part)
        environment = {
            **os.environ,
            **{"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "1700000000", "COLUMNS": "100"},
            **{"TWOFOLD_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)},
            **variant.environment,
        }
        if variant.cold:
            environment["NUMBA_CACHE_DIR"] = str(place / "compiled")
        words = [*shlex.split(COMMANDS[name]), *variant.words, "-o", "json"]
        ended = subprocess.run(
            [variant.python, "-m", "twofold", *words],
            cwd=place,
            env=environment,
            capture_output=True,
            check=False,
        )
        if ended.returncode:
            return {"refused": ended.stderr.decode("utf-8", "replace")[-300:]}
        digests = {"answer": _digest(_bare(json.loads(ended.stdout)))}
        for path in sorted((place / "out").rglob("*")):
            if path.is_file() and not path.name.endswith(_OF_TIME):
                digests[str(path.relative_to(place))] = _of_file(path)
        return digests


def _bare(value: Any) -> Any:
    """Return an answer without what says how it was asked for."""
    if isinstance(value, dict):
        return {key: _bare(part) for key, part in value.items() if key not in _ASKED}
    return [_bare(part) for part in value] if isinstance(value, list) else value


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
    options = parser.parse_args()
    asked = differing = 0
    for name in options.only:
        first = answered(name, Variant("first"))
        if "refused" in first:
            print(f"REFUSED {name}: {first['refused']}", flush=True)
            differing += 1
            continue
        for variant in variants(name, options.seeds, options.python):
            asked += 1
            other = answered(name, variant)
            wrong = [part for part in {**first, **other} if first.get(part) != other.get(part)]
            if wrong:
                differing += 1
                print(f"DIFFERS {name}, {variant.name}: {', '.join(wrong)}", flush=True)
                if "refused" in other:
                    print(f"    {other['refused']}", flush=True)
    print(f"{len(options.only)} commands, {asked} other ways to ask them, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
