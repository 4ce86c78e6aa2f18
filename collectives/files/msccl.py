"""MSCCL's XML: programs of thread blocks, resolved into steps of transfers.

The format is that of MSCCL's runtime (github.com/microsoft/msccl; Cowan et al., "MSCCLang",
ASPLOS 2023, doi 10.1145/3575693.3575724): ``algo`` holds a ``gpu`` per rank, each with thread
blocks (``tb``) that run their ``step`` elements in order and talk to one peer each way on a
channel. Supported are:

* collectives ``allreduce``, ``allgather``, ``reduce_scatter``, ``alltoall``, in place or not;
* steps ``s`` send, ``r`` receive, ``rcs`` receive, copy, send, ``rrc`` receive, reduce, copy,
  ``rrs`` receive, reduce, send, ``rrcs`` receive, reduce, copy, send, ``cpy`` copy, ``nop``;
  the local operand is in ``srcbuf``, the result in ``dstbuf``; ``re`` adds ``srcbuf`` to ``dstbuf``
  (``MSCCL_REDUCE`` of the runtime: nothing is sent);
* ``depid`` and ``deps``: the step of another thread block that must have completed.

Everything that can happen at once is one step, or two if some receivers add and others copy. Sends
are buffered, and copies and sums inside a rank are free: a chunk that is received and added later
by ``re`` is a transfer that adds. Each slot of the buffers is tracked with its chunk and the ranks
that contributed to it, so that a program with outputs other than its collective's is refused.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Schedule, Step
from simulator.support.errors import ScheduleError
from simulator.support.input_files import parse_xml
from simulator.support.quantities import whole_of

Slot = tuple[int, str, int]
"""Rank, buffer (``i`` input, ``o`` output, ``s`` scratch), offset in chunks."""
Connection = tuple[int, int, int]
"""Sender, receiver, channel."""


@dataclass(slots=True)
class SentChunk:
    """A chunk sent from one rank to another; ``reduce``: the target adds it to its own."""

    source: int
    target: int
    chunk: int
    reduce: bool


class Value(NamedTuple):
    """A chunk, the ranks that contributed, and the transfers that brought it in this form."""

    chunk: int
    ranks: frozenset[int]
    arrivals: tuple[SentChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a thread block; ``after`` is the (block, step) of its rank that it waits for."""

    where: str
    what: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    after: tuple[int, int] | None

    @property
    def receives(self) -> bool:
        """Whether it receives a message."""
        return self.what.startswith("r") and self.what != "re"

    @property
    def reduces(self) -> bool:
        """Whether it adds the received message to its source."""
        return self.what.startswith("rr")

    @property
    def sends(self) -> bool:
        """Whether it sends."""
        return self.what.endswith("s")


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A thread block: instructions in order, a peer per direction (-1: none), a channel."""

    rank: int
    number: int
    send: int
    receive: int
    channel: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class MscclProgram:
    """A collective with ``parts`` chunks per buffer; ``in_place``: input and output are one."""

    kind: str
    name: str
    ranks: int
    parts: int
    in_place: bool
    blocks: tuple[ThreadBlock, ...]


def resolve(program: MscclProgram) -> Schedule:
    """Run a program and record what is sent in each step.

    Raises
    ------
    ScheduleError
        Naming rank, thread block and step: a deadlock, a read of an empty slot, a contribution
        added twice, or a result that is not the collective's.
    """
    share, rest = divmod(program.parts, program.ranks)
    if not program.parts or (rest and program.kind != "all_reduce"):
        raise ScheduleError(
            f"algo: nchunksperloop {program.parts} cannot be dealt out to {program.ranks} gpus"
        )
    machine = _Machine(program, share)
    levels: list[list[SentChunk]] = []
    while not machine.finished():
        levels.append(machine.level())
    machine.compare()
    # Only now is it known for every chunk whether it was added to an existing one.
    steps = [
        _step([(sent.source, sent.target, sent.chunk) for sent in rows], reduce=reduce)
        for level in levels
        for reduce in (True, False)
        if (rows := [sent for sent in level if sent.reduce == reduce])
    ]
    chunks = program.parts * (program.ranks if program.kind == "all_to_all" else 1)
    return Schedule(program.kind, program.name, program.ranks, chunks, program.parts, tuple(steps))


@dataclass(slots=True)
class _Machine:
    """State of all thread blocks. A level consists of all that can happen at once.

    ``started`` counts each block's instructions that have begun, ``completed`` those on which
    others may depend: a receive completes when the level ends.
    """

    program: MscclProgram
    share: int
    slots: dict[Slot, Value] = field(default_factory=dict)
    messages: dict[Connection, deque[list[Value]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    started: dict[tuple[int, int], int] = field(default_factory=dict)
    completed: dict[tuple[int, int], int] = field(default_factory=dict)
    _arriving: dict[Slot, Value] = field(default_factory=dict)
    _passed_on: list[tuple[Connection, list[Value]]] = field(default_factory=list)
    _moved: list[SentChunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts, kind = self.program.parts, self.program.kind
        stride = {"all_gather": self.share, "all_to_all": parts}.get(kind, 0)
        for rank in range(self.program.ranks):
            for offset in range(self.share if kind == "all_gather" else parts):
                slot = self._slot(rank, ("i", offset))
                self.slots[slot] = Value(rank * stride + offset, frozenset([rank]))
        self.started = {(block.rank, block.number): 0 for block in self.program.blocks}

    def finished(self) -> bool:
        """Whether all thread blocks have completed."""
        return not any(self._left(block) for block in self.program.blocks)

    def level(self) -> list[SentChunk]:
        """Advance every block until it has received once; return the chunks that were sent."""
        before = dict(self.started)
        self.completed = dict(self.started)
        self._moved = []
        while any(self._advance(block) for block in self.program.blocks):
            pass
        if self.started == before:
            stuck = next(block for block in self.program.blocks if self._left(block))
            raise ScheduleError(f"{self._next(stuck).where}: waits for ever")
        self.slots |= self._arriving
        for connection, values in self._passed_on:
            self.messages[connection].append(values)
        self._arriving, self._passed_on = {}, []
        return self._moved

    def compare(self) -> None:
        """Raise unless all outputs are the collective's, and everything sent was received."""
        for (source, target, channel), queue in self.messages.items():
            if queue:
                raise ScheduleError(
                    f"gpu {source} sends more to gpu {target} on channel {channel} than it takes"
                )
        for rank in range(self.program.ranks):
            for offset, expected in enumerate(self._outputs(rank)):
                value = self.slots.get(self._slot(rank, ("o", offset)))
                if value is None or value[:2] != expected[:2]:
                    raise ScheduleError(
                        f"gpu {rank}: in the end o[{offset}] is not chunk {expected.chunk}, whole"
                    )

    def _outputs(self, rank: int) -> list[Value]:
        """Return the value that each offset of the output must have."""
        parts, share, ranks = self.program.parts, self.share, range(self.program.ranks)
        if self.program.kind == "all_gather":
            return [Value(chunk, frozenset([chunk // share])) for chunk in range(parts)]
        if self.program.kind == "all_to_all":
            first = rank * share
            return [
                Value(source * parts + first + number, frozenset([source]))
                for source in ranks
                for number in range(share)
            ]
        own_chunks = range(rank * share, (rank + 1) * share)
        chunks = own_chunks if self.program.kind == "reduce_scatter" else range(parts)
        return [Value(chunk, frozenset(ranks)) for chunk in chunks]

    def _slot(self, rank: int, where: tuple[str, int]) -> Slot:
        """Return the slot; in place, the smaller of input and output is a share of the larger."""
        buffer, offset = where
        if self.program.in_place and buffer != "s":
            shared = {"all_gather": "i", "reduce_scatter": "o"}.get(self.program.kind)
            return rank, "i", offset + (rank * self.share if buffer == shared else 0)
        return rank, buffer, offset

    def _left(self, block: ThreadBlock) -> int:
        return len(block.instructions) - self.started[block.rank, block.number]

    def _next(self, block: ThreadBlock) -> Instruction:
        return block.instructions[self.started[block.rank, block.number]]

    def _advance(self, block: ThreadBlock) -> bool:
        """Execute the block up to and including its first receive of this level."""
        key = block.rank, block.number
        begun = self.started[key]
        while self._left(block) and self.started[key] == self.completed[key] and self._ready(block):
            instruction = self._next(block)
            self._execute(block, instruction)
            self.started[key] += 1
            self.completed[key] += not instruction.receives
        return self.started[key] > begun

    def _ready(self, block: ThreadBlock) -> bool:
        """Whether the instruction's dependency has completed and its message has been sent."""
        instruction = self._next(block)
        if instruction.after is not None:
            number, step = instruction.after
            if (block.rank, number) not in self.completed:
                raise ScheduleError(f"{instruction.where}: depid {number} is not a tb of its gpu")
            if self.completed[block.rank, number] <= step:
                return False
        return not instruction.receives or bool(
            self.messages[block.receive, block.rank, block.channel]
        )

    def _execute(self, block: ThreadBlock, instruction: Instruction) -> None:
        if instruction.receives:
            values = self._receive(block, instruction)
            if instruction.what != "rrs":
                self._arriving |= self._written(block.rank, instruction, values)
            if instruction.sends:
                self._passed_on.append((_outgoing(block, instruction), values))
        elif instruction.what != "nop":
            values = self._read(block.rank, instruction)
            if instruction.sends:
                self.messages[_outgoing(block, instruction)].append(values)
            elif instruction.what == "re":
                self.slots |= self._add_locally(block.rank, instruction, values)
            else:
                self.slots |= self._written(block.rank, instruction, values)

    def _receive(self, block: ThreadBlock, instruction: Instruction) -> list[Value]:
        """Receive a message, and add the source's values if the instruction reduces."""
        values = self.messages[block.receive, block.rank, block.channel].popleft()
        if len(values) != instruction.count:
            raise ScheduleError(
                f"{instruction.where}: cnt {instruction.count}, but {len(values)} chunks were sent"
            )
        ends = block.receive, block.rank
        moved = [SentChunk(*ends, value.chunk, instruction.reduces) for value in values]
        self._moved += moved
        if not instruction.reduces:
            pairs = zip(values, moved, strict=True)
            return [Value(value.chunk, value.ranks, (sent,)) for value, sent in pairs]
        local = self._read(block.rank, instruction)
        return [_sum_of(instruction.where, *pair) for pair in zip(values, local, strict=True)]

    def _add_locally(
        self, rank: int, instruction: Instruction, values: list[Value]
    ) -> dict[Slot, Value]:
        """Add values to the target; mark transfers as reducing if they lack the rank's own part."""
        present = self._read(rank, instruction, instruction.target)
        for value in (*values, *present):
            for sent in value.arrivals:
                sent.reduce |= rank not in value.ranks
        sums = [_sum_of(instruction.where, *pair) for pair in zip(present, values, strict=True)]
        combined = [
            Value(total.chunk, total.ranks, present_value.arrivals + theirs.arrivals)
            for total, present_value, theirs in zip(sums, present, values, strict=True)
        ]
        return self._written(rank, instruction, combined)

    def _read(
        self, rank: int, instruction: Instruction, where: tuple[str, int] | None = None
    ) -> list[Value]:
        """Return the values at the source, or at ``where``."""
        buffer, first = where or instruction.source
        slots = [self._slot(rank, (buffer, first + offset)) for offset in range(instruction.count)]
        for offset, slot in enumerate(slots):
            if slot not in self.slots:
                raise ScheduleError(
                    f"{instruction.where}: {buffer}[{first + offset}] holds nothing yet"
                )
        return [self.slots[slot] for slot in slots]

    def _written(
        self, rank: int, instruction: Instruction, values: list[Value]
    ) -> dict[Slot, Value]:
        buffer, first = instruction.target
        return {
            self._slot(rank, (buffer, first + offset)): value for offset, value in enumerate(values)
        }


def _outgoing(block: ThreadBlock, instruction: Instruction) -> Connection:
    if block.send < 0 or block.send == block.rank:
        raise ScheduleError(f"{instruction.where}: sends, but its tb's send is {block.send}")
    return block.rank, block.send, block.channel


def _sum_of(where: str, present: Value, arriving: Value) -> Value:
    if present.chunk != arriving.chunk:
        raise ScheduleError(f"{where}: adds chunk {present.chunk} to chunk {arriving.chunk}")
    if present.ranks & arriving.ranks:
        raise ScheduleError(
            f"{where}: adds the contribution of rank {min(present.ranks & arriving.ranks)} to "
            f"chunk {present.chunk} a second time"
        )
    return Value(present.chunk, present.ranks | arriving.ranks)


def _step(rows: list[tuple[int, int, int]], *, reduce: bool) -> Step:
    """Return rows of one chunk as a step; adjacent chunks between the same ranks are merged."""
    joined: list[list[int]] = []
    for source, target, chunk in sorted(rows):
        if joined and joined[-1][:2] == [source, target] and sum(joined[-1][2:]) == chunk:
            joined[-1][3] += 1
        else:
            joined.append([source, target, chunk, 1])
    source, target, first, count = np.array(joined, dtype=np.int32).T
    return Step(source, target, first, count, reduce=reduce)


KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "re", "cpy", "nop")


def read_msccl(text: str) -> tuple[Schedule, NDArray[np.int32] | None]:
    """Parse a program and return its schedule; owners are the default's (None).

    Raises
    ------
    ScheduleError
        If it is not XML, or an element, attribute or type is unknown; it is named.
    """
    root = parse_xml(text, "the file", ScheduleError)
    if root.tag != "algo":
        raise ScheduleError(f"<{root.tag}>: the outermost element must be <algo>")
    coll = _text(root, "algo", "coll")
    if coll not in KINDS:
        raise ScheduleError(f"algo: coll {coll!r} is not one of {', '.join(KINDS)}")
    gpus = _numbered(root, "gpu", "algo")
    ranks = _number(root, "algo", "ngpus")
    if sorted(gpus) != list(range(ranks)):
        raise ScheduleError(f"algo: ngpus is {ranks}, but the gpus are {sorted(gpus)}")
    program = MscclProgram(
        kind=KINDS[coll],
        name=root.get("name", "custom"),
        ranks=ranks,
        parts=_number(root, "algo", "nchunksperloop"),
        in_place=root.get("inplace", "0") == "1",
        blocks=tuple(block for rank in sorted(gpus) for block in _blocks(rank, gpus[rank])),
    )
    return resolve(program), None


def _blocks(rank: int, gpu: ElementTree.Element) -> list[ThreadBlock]:
    blocks = []
    for number, tb in sorted(_numbered(gpu, "tb", f"gpu {rank}").items()):
        where = f"gpu {rank}, tb {number}"
        ends = (_number(tb, where, name, least=-1) for name in ("send", "recv", "chan"))
        send, receive, channel = ends
        steps = _numbered(tb, "step", where, key="s")
        if sorted(steps) != list(range(len(steps))):
            raise ScheduleError(f"{where}: steps are {sorted(steps)}, not 0, 1, 2, …")
        instructions = tuple(
            _instruction(steps[index], f"{where}, step {index}") for index in sorted(steps)
        )
        blocks.append(ThreadBlock(rank, number, send, receive, channel, instructions))
    return blocks


def _instruction(step: ElementTree.Element, where: str) -> Instruction:
    what = _text(step, where, "type")
    if what not in TYPES:
        raise ScheduleError(f"{where}: type {what!r} is not one of {', '.join(TYPES)}")
    source = _text(step, where, "srcbuf"), _number(step, where, "srcoff", least=-1)
    target = _text(step, where, "dstbuf"), _number(step, where, "dstoff", least=-1)
    for buffer, _ in (source, target):
        if buffer not in ("i", "o", "s"):
            raise ScheduleError(f"{where}: buffer {buffer!r} is not one of i, o, s")
    after = _number(step, where, "depid", least=-1), _number(step, where, "deps", least=-1)
    count = _number(step, where, "cnt")
    return Instruction(where, what, source, target, count, after if after[0] >= 0 else None)


_MOST = 2**20
"""Largest number in a program; more is a mistake, or an attempt to exhaust the memory."""


def _numbered(
    parent: ElementTree.Element, tag: str, where: str, key: str = "id"
) -> dict[int, ElementTree.Element]:
    """Return the children by number; refuse other elements, and a number given twice."""
    children: dict[int, ElementTree.Element] = {}
    for child in parent:
        if child.tag != tag:
            raise ScheduleError(f"{where}: <{child.tag}> is not understood here, only <{tag}>")
        number = _number(child, f"{where}, a <{tag}>", key)
        if number in children:
            raise ScheduleError(f"{where}: {tag} {number} is given twice")
        children[number] = child
    return children


def _text(element: ElementTree.Element, where: str, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise ScheduleError(f"{where}: attribute {name} is missing")
    return value


def _number(element: ElementTree.Element, where: str, name: str, *, least: int = 0) -> int:
    text = _text(element, where, name)
    number = whole_of(text)
    if number is None or number < least:
        raise ScheduleError(f"{where}: {name} {text!r} is not a whole number of {least} or more")
    if number > _MOST:
        raise ScheduleError(f"{where}: {name} {number} is more than {_MOST}")
    return number
