"""What must not change an answer does not, and no trace, however torn, makes a traceback."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.link_tapes import Tape, replay
from simulator.support.errors import DeadlockError, TraceError

EXACT = pytest.approx
Events = list[dict[str, Any]]
GROUPS = [("0", "tp", (0, 1)), ("1", "dp", (0, 1))]


def training(folder: Path) -> Path:
    """Two ranks, two steps: two threads, overlap, two groups, a copy, synchronisation."""
    for rank in range(2):
        tape = Tape(rank, 2, GROUPS)
        for number in range(2):
            _step(tape, number, 2000.0 * number + 1000)
        tape.write(folder)
    return folder


def _step(tape: Tape, number: int, at: float) -> None:
    tape.step(number, at, 1500)
    slow = 1 + 0.2 * tape.rank
    device = at + 15
    for layer in range(8):
        thread, call = (1 if layer < 4 else 2), at + 10 + 100 * layer
        tape.host("aten::mm", call - 1, 95, thread=thread)
        tape.launch(call, 7, device, 60 * slow, f"layer{layer}", thread=thread)
        ended = device + 60 * slow
        if layer % 2:
            tape.collective(call + 5, 30, ended + 1, 90 - 12 * tape.rank, group="1", thread=thread)
        tape.collective(call + 30, 24, ended + 1, 40 - 12 * tape.rank, thread=thread)
        tape.wait(call + 55, thread=thread)
        device = ended + 43 - 12 * tape.rank
    tape.wait(at + 1000)
    tape.launch(at + 1010, 7, max(at + 1015, device + 60), 30, "optimizer")
    copied = max(at + 1060, device + 91)
    tape.launch(at + 1050, 7, copied, 2, "Memcpy DtoH (Device -> Pinned)")
    tape.call("cudaStreamSynchronize", at + 1054, copied + 5 - at - 1054)
    tape.launch(copied + 30, 7, copied + 35, 10, "after")


def change(folder: Path, how: Callable[[Events], Events]) -> Path:
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        document["traceEvents"] = how(document["traceEvents"])
        path.write_text(json.dumps(document))
    return folder


def steps(folder: Path) -> tuple[float, ...]:
    """The answers to four questions (us)."""
    asked: tuple[dict[str, float], ...] = ({}, {"compute": 2}, {"host": 2}, {"network": 0.5})
    return tuple(replay(folder, **one).step for one in asked)


def test_the_job_replays_as_it_was_written(tmp_path: Path) -> None:
    path = training(tmp_path)
    for step in ("median", "all", "0", "1"):
        found = replay(path, step=step)
        assert found.step == EXACT(found.measured, rel=0.005)
    assert found.loaded.coverage.starts_explained == 1.0
    assert found.loaded.coverage.starts.get("contradicted waits", 0) == 0


@pytest.mark.parametrize(
    "how",
    [
        lambda events: random.Random(1).sample(events, len(events)),
        lambda events: [event | {"ts": event["ts"] + 123_456_789.0} for event in events],
        lambda events: [event | {"pid": event["pid"] and 4242} for event in events],
    ],
    ids=["order in the file", "time of day", "process"],
)
def test_what_says_nothing_changes_nothing(tmp_path: Path, how: Callable[[Events], Events]) -> None:
    before = steps(training(tmp_path))
    assert steps(change(tmp_path, how)) == EXACT(before, abs=0.002)


def test_names_of_files_change_nothing(tmp_path: Path) -> None:
    before = steps(training(tmp_path))
    for number, path in enumerate(sorted(tmp_path.glob("*.json"))):
        path.rename(tmp_path / f"{9 - number}.pt.trace.json")
    assert steps(tmp_path) == before


def test_twice_the_time_is_twice_the_answer(tmp_path: Path) -> None:
    """Nearly: what is taken for silence or for just afterwards is told by the clock, in us."""
    before = steps(training(tmp_path))
    twice = change(
        tmp_path, lambda events: [e | {"ts": 2 * e["ts"], "dur": 2 * e["dur"]} for e in events]
    )
    assert steps(twice) == EXACT([2 * step for step in before], rel=0.04)


@pytest.mark.parametrize("ahead", [-5000.0, 250.0, 5000.0])
def test_a_skewed_clock_changes_nothing(tmp_path: Path, ahead: float) -> None:
    before = steps(training(tmp_path))
    path = tmp_path / "rank1.json"
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        event["ts"] += ahead + 10_000
    path.write_text(json.dumps(document))
    assert steps(tmp_path) == EXACT(before, abs=2)


def _drop(events: Events, rng: random.Random) -> Events:
    return [event for event in events if rng.random() < 0.7]


def _jitter(events: Events, rng: random.Random) -> Events:
    return [event | {"ts": event["ts"] + rng.uniform(-30, 30)} for event in events]


def _coarse(events: Events, rng: random.Random) -> Events:
    unit = rng.choice((10, 100))
    return [
        event | {"ts": unit * round(event["ts"] / unit), "dur": unit * round(event["dur"] / unit)}
        for event in events
    ]


def _stop(events: Events, rng: random.Random) -> Events:
    return [event | {"dur": 0} if rng.random() < 0.3 else event for event in events]


def _confuse(events: Events, rng: random.Random) -> Events:
    ids = [event for event in events if "correlation" in event["args"]]
    for event in rng.sample(ids, len(ids) // 8):
        event["args"]["correlation"] = rng.randrange(60)
    return events


def _threads(events: Events, rng: random.Random) -> Events:
    host = [event for event in events if event["pid"]]
    for event in rng.sample(host, len(host) // 5):
        event["tid"] = rng.choice((1, 2, 3))
    return events


def _streams(events: Events, rng: random.Random) -> Events:
    for event in events:
        if "stream" in event["args"] and rng.random() < 0.3:
            event["args"]["stream"] = rng.choice((7, 24, 30))
    return events


TEARS = (_drop, _jitter, _coarse, _stop, _confuse, _threads, _streams)


@pytest.mark.parametrize("seed", range(30))
def test_a_torn_trace_is_replayed_or_refused_but_never_a_cycle(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    torn = training(tmp_path)
    (tmp_path / "rank1.json").unlink()
    for tear in rng.sample(TEARS, rng.choice((1, 2, 3))):
        change(torn, lambda events, tear=tear: tear(events, rng))
    try:
        replay(torn, step=rng.choice(("median", "all")))
    except (TraceError, DeadlockError) as error:
        assert str(error)  # noqa: PT017 - a refusal is as good as an answer


def test_an_unknown_collective_kernel_costs_what_was_measured(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 24, 5, 70, "ncclDevKernel_Generic")
    found = replay(tape.write(tmp_path))
    assert found.step == EXACT(75)
    assert found.loaded.coverage.sizes_known == 0


def test_a_launch_inside_a_launch_is_one(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10, "inner")
    tape.correlation -= 1
    tape.call("cuLaunchKernel", 0.5, 1)
    assert replay(tape.write(tmp_path)).step == EXACT(15)


@pytest.mark.parametrize("seed", range(4))
def test_threads_of_their_own_do_not_wake_one_another(tmp_path: Path, seed: int) -> None:
    """One is bound by the device, the other is not and needs its time on any device."""
    rng = random.Random(seed)
    tape = Tape()
    at = 0.0
    while at < 50_000:
        busy = rng.uniform(500, 4000)
        tape.launch(at, 7, at + 5, busy)
        tape.call("cudaDeviceSynchronize", at + 10, busy)
        tape.host("python", at + busy + 20, 5)
        at += busy + 35 + rng.uniform(0, 600)
    at = 0.0
    while at < 60_000:
        tape.host("of its own", at, 20, thread=2)
        at += rng.uniform(200, 3000)
    tape.host("of its own", 60_000, 10, thread=2)
    path = tape.write(tmp_path)
    assert replay(path).step == EXACT(60_010)
    assert replay(path, compute=2).step == EXACT(60_010)
