"""``python -m benchmarks.fuzz --minutes 10 --seed 1``: a campaign; failures are kept and printed.

Chosen cases first, then every number of every text format replaced by numbers of no sense, then
random ones of the seed, a format after the other, until the time is up. Exit status 1 if any case
failed.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from benchmarks.fuzz.chosen import chosen
from benchmarks.fuzz.harness import Case, Outcome, import_all, run, run_all
from benchmarks.fuzz.mutators import BY_KIND, NUMBERS, mutated, substituted, tokens
from benchmarks.fuzz.seeds import Seed, seeds, words_of

_MOST_TOKENS = 60


def _cases_of(seed: Seed, data: bytes, label: str, at: int) -> Case:
    command = seed.commands[at % len(seed.commands)]
    files = {seed.name: data, **dict(seed.beside)}
    return Case(f"{seed.kind}: {label}", words_of(command, seed.name), files)


def systematic(rng: random.Random) -> Iterator[Case]:
    """Every number of every text format, replaced by every number of no sense."""
    cases = []
    for seed in seeds():
        if seed.kind in BY_KIND or seed.kind == "kineto":
            continue
        numbers = range(tokens(seed.data))
        for token in rng.sample(numbers, min(len(numbers), _MOST_TOKENS)):
            for text in NUMBERS:
                data = substituted(seed.data, token, text.encode())
                cases.append(_cases_of(seed, data, f"number {token} is {text[:20]}", len(cases)))
    rng.shuffle(cases)
    yield from cases


def endless(rng: random.Random) -> Iterator[Case]:
    """Random cases, a format after the other."""
    every = list(seeds())
    number = 0
    while True:
        for seed in every:
            number += 1
            yield _cases_of(seed, mutated(seed, rng), f"random {number}", rng.randrange(9))


def main() -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None, help="a directory for what failed")
    parser.add_argument("--only", default="", help="of cases whose name has this")
    parser.add_argument("--parts", default="chosen,systematic,random")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    import_all()
    rng = random.Random(seed)
    until = time.monotonic() + 60 * options.minutes
    counts: Counter[str] = Counter()
    cpu = peak = total = 0.0
    parts = {
        "chosen": chosen,
        "systematic": lambda: systematic(rng),
        "random": lambda: endless(rng),
    }
    for part in options.parts.split(","):
        named = (case for case in parts[part]() if options.only in case.name)
        for case, among in run_all(takewhile(lambda _: time.monotonic() < until, named)):
            outcome = run(case) if among.verdict() else among
            if among.verdict() and not outcome.verdict():
                counts[f"only after others: {among.verdict()}"] += 1
                print(f"only after others: {among.verdict()}: {case.name}"[:300], flush=True)
            counts[part] += 1
            counts[f"{part}, exit {outcome.status}"] += 1
            cpu, peak = max(cpu, outcome.cpu), max(peak, outcome.peak)
            total += outcome.cpu
            if verdict := outcome.verdict():
                counts[f"FAILED: {verdict}"] += 1
                _keep(options.keep, case, outcome, verdict, sum(counts.values()))
    print(f"{sum(counts[part] for part in parts)} cases, {total:.0f} s of CPU")
    print(f"longest {cpu:.1f} s of CPU, largest {peak / 1e6:.0f} MB")
    for what, count in sorted(counts.items()):
        print(f"{count:7d}  {what}")
    return int(any(what.startswith("FAILED") for what in counts))


def _keep(folder: Path | None, case: Case, outcome: Outcome, verdict: str, number: int) -> None:
    last = (outcome.err.strip().splitlines() or [""])[-1][:300]
    print(f"FAILED {verdict}: {case.name}: twofold {' '.join(case.words)}"[:400])
    print(
        f"    status {outcome.status}, {outcome.cpu:.1f} s, {outcome.peak / 1e6:.0f} MB: {last}",
        flush=True,
    )
    if folder is not None:
        for name, content in case.files.items():
            path = folder / f"{number:06d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
