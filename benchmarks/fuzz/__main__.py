"""``python -m benchmarks.fuzz --minutes 10 --seed 1``: a campaign; failures are kept and printed.

Chosen cases first, then every number of every text format replaced by numbers of no sense, then
random ones of the seed, a format after the other, until the time is up or there were as many as
``--count`` says. A random case is made of the seed and its number alone: ``--first`` begins at
another. Exit status 1 if any case failed.
"""

import argparse
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.fuzz.chosen import chosen
from benchmarks.fuzz.harness import NONSENSE, Case, Outcome, import_all, run, run_all
from benchmarks.fuzz.mutators import BY_KIND, NUMBERS, mutated, substituted, tokens
from benchmarks.fuzz.seeds import Seed, seeds, words_of

_MOST_TOKENS = 60
_SAID_EVERY = 300.0
"""Seconds between two lines that say how far a campaign is."""

Part = tuple[Callable[[int], Case], Iterable[int]]
"""What makes the case of a number, and the numbers."""


def _case(seed: Seed, data: bytes, label: str, at: int) -> Case:
    command = seed.commands[at % len(seed.commands)]
    files = {seed.name: data, **dict(seed.beside)}
    words = words_of(command, seed.name)
    return Case(f"{seed.kind}: {label}", words, files, is_plan=seed.kind == "plan")


def chosen_cases(only: str) -> Part:
    """Return those of :mod:`benchmarks.fuzz.chosen` whose name has a text."""
    cases = [case for case in chosen() if only in case.name]
    return cases.__getitem__, range(len(cases))


def systematic(rng: random.Random, only: str) -> Part:
    """Replace every number of every text format by every number of no sense."""
    changes = [
        (seed, token, text)
        for seed in seeds()
        if seed.kind not in BY_KIND and seed.kind != "kineto" and only in seed.kind
        for numbers in [range(tokens(seed.data))]
        for token in rng.sample(numbers, min(len(numbers), _MOST_TOKENS))
        for text in NUMBERS
    ]
    rng.shuffle(changes)

    def case_of(number: int) -> Case:
        seed, token, text = changes[number]
        data = substituted(seed.data, token, text.encode())
        return _case(seed, data, f"number {token} is {text[:20]}", number)

    return case_of, range(len(changes))


def endless(campaign: int, only: str, first: int = 0) -> Part:
    """Make random cases without end, a format after the other."""
    every = [seed for seed in seeds() if only in seed.kind]

    def case_of(number: int) -> Case:
        rng = random.Random(f"{campaign} {number}")
        seed = every[number % len(every)]
        return _case(seed, mutated(seed, rng), f"random {number}", rng.randrange(840))

    return case_of, itertools.count(first)


class _Tally:
    """What became of the cases of a campaign."""

    def __init__(self, keep: Path | None) -> None:
        self._keep = keep
        self._begun = self._said = time.monotonic()
        self.counts: Counter[str] = Counter()
        self._cpu = self._longest = 0.0
        self._peak = 0
        self.cases = self.failed = 0

    def add(self, part: str, case_of: Callable[[int], Case], number: int, among: Outcome) -> None:
        """Count a case; one that failed among others is tried alone, in a process of its own."""
        outcome = among
        if among.verdict():
            case = case_of(number)
            outcome = run(case)
            if outcome.verdict() == NONSENSE and case.names() >= outcome.nonsense():
                outcome = replace(outcome, out="")  # a file calls something so
            elif not outcome.verdict():
                self.counts[f"only after others: {among.verdict()}"] += 1
                print(f"only after others: {among.verdict()}: {case.name}"[:300], flush=True)
        self.cases += 1
        self.counts[part] += 1
        self.counts[f"{part}, exit {outcome.status}"] += 1
        self._cpu += outcome.cpu
        self._longest, self._peak = max(self._longest, outcome.cpu), max(self._peak, outcome.peak)
        if verdict := outcome.verdict():
            self.failed += 1
            self.counts[f"FAILED: {verdict}"] += 1
            self._print(case, outcome, verdict)
        if time.monotonic() > self._said + _SAID_EVERY:
            self._said = time.monotonic()
            self.say()

    def say(self) -> None:
        """Print how many there were."""
        hours = (time.monotonic() - self._begun) / 3600
        print(
            f"{self.cases} cases in {hours:.2f} h, {self._cpu:.0f} s of CPU, {self.failed} failed; "
            f"longest {self._longest:.1f} s of CPU, largest {self._peak / 1e6:.0f} MB",
            flush=True,
        )

    def _print(self, case: Case, outcome: Outcome, verdict: str) -> None:
        last = (outcome.err.strip().splitlines() or [""])[-1][:300]
        print(f"FAILED {verdict}: {case.name}: twofold {' '.join(case.words)}"[:400])
        print(
            f"    status {outcome.status}, {outcome.cpu:.1f} s, {outcome.peak / 1e6:.0f} MB: {last}",
            flush=True,
        )
        if self._keep is not None:
            for name, content in case.files.items():
                path = self._keep / f"{self.failed:06d}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    path.write_bytes(content)


def main() -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, default=None, help="of random cases, at most")
    parser.add_argument("--first", type=int, default=0, help="number of the first random case")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, default=None, help="a directory for what failed")
    parser.add_argument("--only", default="", help="of cases or formats whose name has this")
    parser.add_argument("--parts", default="chosen,systematic,random")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    import_all()
    until = time.monotonic() + 60 * options.minutes
    parts = {
        "chosen": lambda: chosen_cases(options.only),
        "systematic": lambda: systematic(random.Random(seed), options.only),
        "random": lambda: endless(seed, options.only, options.first),
    }
    tally = _Tally(options.keep)
    for part in options.parts.split(","):
        case_of, numbers = parts[part]()
        if part == "random":
            numbers = itertools.islice(numbers, options.count)
        for number, among in run_all(case_of, numbers, workers=options.workers, until=until):
            tally.add(part, case_of, number, among)
    tally.say()
    for what, count in sorted(tally.counts.items()):
        print(f"{count:7d}  {what}")
    return int(tally.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
