"""MSCCL's XML: programs of thread blocks, resolved into steps of transfers.

The format is that of MSCCL's runtime (github.com/microsoft/msccl; Cowan et al., "MSCCLang",
ASPLOS 2023, doi 10.1145/3575693.3575724): ``algo`` holds a ``gpu`` per rank, each with thread
blocks (``tb``) that run their ``step`` elements in order and talk to one peer each way on a
channel. What is understood:

* collectives ``allreduce``, ``allgather``, ``reduce_scatter``, ``alltoall``, in place or not;
* steps ``s`` send, ``r`` receive, ``rcs`` receive, copy, send, ``rrc`` receive, reduce, copy,
  ``rrs`` receive, reduce, send, ``rrcs`` receive, reduce, copy, send, ``cpy`` copy, ``nop``;
  what is reduced lies at ``srcbuf``, the result at ``dstbuf``; ``re`` adds what lies at ``srcbuf``
  to what lies at ``dstbuf`` (``MSCCL_REDUCE`` of the runtime: nothing is sent);
* ``depid`` and ``deps``: the step of another thread block that must be over.

Everything that can happen at once is one step, or two where some receivers add and others copy.
Sends are buffered, and copies and sums inside a rank are free: what is received and added later by
``re`` is a transfer that adds. The buffers are followed place by place, so
that a program whose outputs are not what its collective says is refused.
"""

from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from collectives.files.thread_blocks import Instruction, MscclProgram, ThreadBlock, resolve
from simulator.schedule import Schedule
from simulator.support.errors import ScheduleError
from simulator.support.input_files import parse_xml
from simulator.support.quantities import whole_of

KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "re", "cpy", "nop")


def read_msccl(text: str) -> tuple[Schedule, NDArray[np.int32] | None]:
    """Turn a program into a schedule; owners are the default's (None).

    Parameters
    ----------
    text
        Of an XML file.

    Raises
    ------
    ScheduleError
        If it is not XML, or an element, attribute or type is not understood; named.
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
    if count > _MOST:
        raise ScheduleError(f"{where}: cnt {count} is more than {_MOST}")
    return Instruction(where, what, source, target, count, after if after[0] >= 0 else None)


_MOST = 2**20
"""Chunks of one message; more is a slip, or an attempt to fill the memory."""


def _numbered(
    parent: ElementTree.Element, tag: str, where: str, key: str = "id"
) -> dict[int, ElementTree.Element]:
    """Children by number; another element, or a number given twice, is refused."""
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
    return number
