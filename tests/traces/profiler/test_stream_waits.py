"""Who waits for whom where no profiler recorded ids: each pattern against a schedule that knows.

A program is what a rank launches, with the true waits. Its schedule says when each op runs; a tape
of it holds the calls that PyTorch makes, of which none says who waits for whom.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.link_tapes import LATENCY, Replay, Tape, replay
from helpers.tries import tries
from simulator.workload import What

MAIN, GATHER, SCATTER, REDUCE = 7, 20, 24, 28
PERIOD = 40.0
"""From one launch to the next (us): the calls of a collective take 20."""


@dataclass
class Op:
    """An op of the device; ``joins`` says that the host calls a wait for each of ``waits``."""

    name: str
    stream: int
    length: float
    waits: Sequence[int] = ()
    joins: bool = True


@dataclass
class Program:
    """What one rank launches, in that order, at a steady pace."""

    ops: list[Op] = field(default_factory=list)
    period: float = PERIOD

    def compute(self, name: str, length: float, *waits: int) -> int:
        self.ops.append(Op(name, MAIN, length, waits))
        return len(self.ops) - 1

    def collective(self, name: str, stream: int, length: float, *waits: int) -> int:
        """A collective whose own wait, in its call, is for ``waits``."""
        self.ops.append(Op(name, stream, length, waits, joins=False))
        return len(self.ops) - 1

    def starts(self, network: float = 1.0, compute: float = 1.0) -> list[float]:
        """When each op starts (us) if collectives or compute are so many times as fast."""
        ends: list[float] = []
        found: list[float] = []
        free: dict[int, float] = {}
        for number, op in enumerate(self.ops):
            waits = [ends[one] for one in op.waits]
            found.append(max(self.launched(number) + LATENCY, free.get(op.stream, 0.0), *waits, 0))
            factor = compute if op.stream == MAIN else network
            free[op.stream] = found[-1] + op.length / factor
            ends.append(free[op.stream])
        return found

    def step(self, network: float = 1.0, compute: float = 1.0) -> float:
        """Length (us) from the first call to the last end."""
        starts = self.starts(network, compute)
        factors = [compute if op.stream == MAIN else network for op in self.ops]
        both = zip(self.ops, starts, factors, strict=True)
        return max(start + op.length / factor for op, start, factor in both)

    def launched(self, number: int) -> float:
        return 20.0 + self.period * number

    def replay(self, folder: Path, network: float = 1.0, compute: float = 1.0) -> Replay:
        return replay(self.tape().write(folder), network=network, compute=compute)

    def tape(self) -> Tape:
        tape = Tape()
        tape.host("aten::empty", 0, 5)
        for number, (op, start) in enumerate(zip(self.ops, self.starts(), strict=True)):
            at = self.launched(number)
            if op.joins:
                for count in range(len(op.waits)):
                    tape.wait(at - 27 + 2 * count)
                tape.launch(at, op.stream, start, op.length, op.name)
            else:
                known: dict[str, Any] = {
                    "kind": op.name,
                    "sequence": number,
                    "group": str(op.stream),
                }
                tape.collective(at - 10, op.stream, start, op.length, **known)
        return tape

    def true_waits(self) -> dict[str, set[str]]:
        """For each op, by name or number, what it waits for: of each stream the last."""
        found: dict[str, set[str]] = {}
        for number, op in enumerate(self.ops):
            latest = {self.ops[one].stream: self.label(one) for one in op.waits}
            if latest:
                found[self.label(number)] = set(latest.values())
        return found

    def label(self, number: int) -> str:
        """Name of a compute op, number of a collective."""
        op = self.ops[number]
        return op.name if op.joins else str(number)


def waits_found(found: Replay) -> dict[str, set[str]]:
    """For each op of the device, what it waits for on other streams, labelled as in a program."""
    load = found.loaded.workload

    def label(op: int) -> str:
        call = load.call[op]
        return str(load.calls.sequence[call]) if call >= 0 else str(load.names[load.name[op]])

    into: dict[str, set[str]] = {}
    for source, target in zip(load.edges.source.tolist(), load.edges.target.tolist(), strict=True):
        if load.what[source] != What.HOST and load.lane[source] != load.lane[target]:
            into.setdefault(label(target), set()).add(label(source))
    return into


def prefetched(layers: int, gather: float, layer: float, scatter: float = 0) -> Program:
    """FSDP's forward, and backward where there is a ``scatter``: layer i runs as i+1 is gathered.

    All-gathers are launched from a side stream, and wait for no compute.
    """
    program = Program()
    last = -1
    for phase in ("forward", "backward") if scatter else ("forward",):
        following = program.collective("all_gather", GATHER, gather)
        for number in range(layers):
            current = following
            if number + 1 < layers:
                following = program.collective("all_gather", GATHER, gather)
            done = program.compute(f"{phase}{number}", layer, current)
            if phase == "backward":
                last = program.collective("reduce_scatter", SCATTER, scatter, done)
    if last >= 0:
        program.compute("optimizer", 50, last)
    return program


def at_once(layers: int, gather: float, layer: float) -> Program:
    """Each layer's all-gather is launched just before the layer, far ahead of the device."""
    program = Program()
    for number in range(layers):
        gathered = program.collective("all_gather", GATHER, gather)
        program.compute(f"forward{number}", layer, gathered)
    return program


def replicated(layers: int, layer: float, scatter: float, reduce: float) -> Program:
    """Backward of hybrid sharding: what was reduce-scattered is all-reduced between replicas."""
    program = Program()
    last = -1
    for number in range(layers):
        done = program.compute(f"backward{number}", layer)
        scattered = program.collective("reduce_scatter", SCATTER, scatter, done)
        last = program.collective("all_reduce", REDUCE, reduce, scattered)
    program.compute("optimizer", 50, last)
    return program


def overlapped(layers: int, layer: float, one: float, other: float) -> Program:
    """Two collectives of one gradient on two communicators, both behind compute only."""
    program = Program()
    ends: list[int] = []
    for number in range(layers):
        done = program.compute(f"backward{number}", layer)
        ends.append(program.collective("reduce_scatter", SCATTER, one, done))
        ends.append(program.collective("all_reduce", REDUCE, other, done))
    program.compute("optimizer", 50, *ends)
    return program


def test_a_wait_at_the_tick_on_which_a_collectives_call_ended_is_not_the_librarys(
    tmp_path: Path,
) -> None:
    """Stamps of whole microseconds leave no gap, and calls of no length."""
    for length in (0, 1):
        tape = Tape()
        for number, at in enumerate((0, 200)):
            tape.collective(at, GATHER, at + 15, 100, kind="all_gather", sequence=number)
            if number:
                tape.call("cudaEventRecord", at + 20 - length, length)
                tape.call("cudaStreamWaitEvent", at + 20, length)
                tape.launch(at + 22, MAIN, at + 200, 50, "next")
        edges = waits_found(replay(tape.write(tmp_path)))
        assert edges == {"next": {"1"}}, length


def test_a_wait_called_after_a_collective_does_not_hold_that_up(tmp_path: Path) -> None:
    tape = Tape(groups=[("0", "shard", [0]), ("1", "grads", [0])])
    tape.collective(0, GATHER, 15, 300, kind="all_gather", sequence=0)
    tape.launch(40, MAIN, 45, 500, "layer")
    tape.collective(60, SCATTER, 545, 50, kind="reduce_scatter", sequence=1, group="1")
    tape.call("cudaStreamWaitEvent", 90)
    tape.launch(100, MAIN, 546, 50, "next")
    assert waits_found(replay(tape.write(tmp_path))) == {"1": {"layer"}, "next": {"0"}}


PATTERNS: dict[str, Callable[[], Program]] = {
    "prefetched, bound by compute": lambda: prefetched(6, 300, 500),
    "prefetched, bound by communication": lambda: prefetched(6, 500, 300, 350),
    "prefetched, forward and backward": lambda: prefetched(6, 300, 500, 350),
    "at once, bound by compute": lambda: at_once(6, 200, 500),
    "at once, bound by communication": lambda: at_once(6, 500, 200),
    "replicated, bound by compute": lambda: replicated(6, 500, 200, 150),
    "replicated, bound by the all-reduce": lambda: replicated(6, 500, 200, 900),
    "overlapped, second shorter": lambda: overlapped(4, 500, 200, 100),
    "overlapped, second longer": lambda: overlapped(4, 300, 200, 400),
}
CHANGES = [(2.0, 1.0), (0.5, 1.0), (0.1, 1.0), (1.0, 2.0), (1.0, 0.5), (0.5, 2.0)]
"""How many times as fast the network and compute are."""


def near(value: float) -> object:
    """Latencies behind the host are all that a factor does not tell apart."""
    return pytest.approx(value, rel=2e-3, abs=2)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_waited_waits_and_nothing_else_does(pattern: str, tmp_path: Path) -> None:
    program = PATTERNS[pattern]()
    assert waits_found(program.replay(tmp_path)) == program.true_waits()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_ifs_say_what_the_program_would_have_done(pattern: str, tmp_path: Path) -> None:
    program = PATTERNS[pattern]()
    for network, compute in [(1.0, 1.0), *CHANGES]:
        found = program.replay(tmp_path, network, compute)
        assert found.step == near(program.step(network, compute)), (network, compute)


LENGTHS = st.integers(100, 2000).map(float)


@given(st.sampled_from([prefetched, replicated, at_once]), LENGTHS, LENGTHS, LENGTHS)
@tries(60)
def test_the_first_layer_tells_the_others_of_any_length(
    pattern: Callable[..., Program], one: float, other: float, third: float
) -> None:
    """What holds up the first layer is seen in its start, whatever holds up the later ones."""
    program = pattern(5, one, other) if pattern is at_once else pattern(5, one, other, third)
    with TemporaryDirectory() as folder:
        assert waits_found(program.replay(Path(folder))) == program.true_waits()
