"""A rank's part of a communication call, in whatever format, and the words that name its kind."""

import re
from dataclasses import dataclass

from simulator.workload import What

_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"all_?reduce", "all_reduce"),
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all", "all_to_all"),
        (r"broadcast", "broadcast"),
        (r"barrier", "barrier"),
        (r"gather", "gather"),
        (r"scatter", "scatter"),
        (r"reduce", "reduce"),
        (r"send_?recv|\bsend|\brecv|isend|irecv|receive", "send_receive"),
    )
)
"""Words of PyTorch, NCCL and RCCL, looked for in this order: ``all_reduce`` holds ``reduce``."""

_ENDS = {"send": What.SEND, "receive": What.RECEIVE}
PARAM_COMMS = "record_param_comms"
"""What PyTorch records beside an operator: the call's parameters."""
ANNOTATION = re.compile(r"(?:[a-z]*ccl|gloo|mpi|ucc):(\w+)(?: (\d+)(?:->|<-)(\d+))?")
"""What a backend calls its work: ``nccl:all_reduce``, ``gloo:send 0->1``."""
OPERATOR = "c10d::"
"""Operators of PyTorch's process groups."""
CUSTOM = re.compile(r"(?:_C_custom_ar|sgl_kernel|symm_mem)::(\w*(?:all_?reduce|all_?gather)\w*)")
"""Operators that exchange data without ProcessGroup's help (vLLM, SGLang, symmetric memory)."""
UNKNOWN_GROUP = "unknown group"
"""Label of a call of one of several groups, the trace not telling which: nobody joins this rank,
and the call costs what was measured."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Bytes that a rank of an all-to-all has for each of its group, and gets from each.

    In the order of the group; () where the trace does not tell. ``elided``: it has a list that was
    cut short when it was written.
    """

    sent: tuple[float, ...] = ()
    received: tuple[float, ...] = ()
    elided: bool = False

    @property
    def told(self) -> bool:
        """Whether anything is known."""
        return bool(self.sent or self.received)


NO_SPLITS = Splits()


@dataclass(frozen=True, slots=True)
class LocalCall:
    """One rank's part of a call, before ranks are matched.

    ``size`` is S of nccl-tests (B), NaN where the trace does not tell. ``ranks`` is None where the
    trace does not tell the group; ``key`` tells groups of one rank apart. ``peer`` and
    ``direction`` are those of a message: ``send``, ``receive`` or "" where the trace does not tell;
    one that is ``eager`` does not wait for its receiver. A call whose group is not told ``may_be``
    one of those, on each group that the trace lists, in the order in which they were made.
    ``splits`` are of an all-to-all whose pairs have sizes of their own.
    """

    kind: str
    size: float
    dtype: str
    key: str
    label: str
    ranks: tuple[int, ...] | None
    group_size: int | None
    sequence: int | None
    peer: int | None
    where: str
    direction: str = ""
    eager: bool = False
    may_be: tuple["LocalCall", ...] = ()
    splits: Splits = NO_SPLITS

    @property
    def what(self) -> What:
        """What the op of a rank is that takes part: of a message, whether it sends or receives."""
        known = self.kind == "send_receive" and self.peer is not None
        return _ENDS.get(self.direction, What.COLLECTIVE) if known else What.COLLECTIVE


def kind_of(words: str) -> str | None:
    """Name the kind in a trace's own words; None if they name none.

    Examples
    --------
    >>> kind_of("_allgather_base"), kind_of("ncclKernel_SendRecv_RING_SIMPLE"), kind_of("wait")
    ('all_gather', 'send_receive', None)
    """
    low = words.lower()
    return next((kind for pattern, kind in _KINDS if pattern.search(low)), None)


def is_comm(name: str) -> bool:
    """Whether a host event of this name tells of communication."""
    known = name == PARAM_COMMS or name.startswith(OPERATOR)
    return known or bool(ANNOTATION.match(name) or CUSTOM.match(name))
