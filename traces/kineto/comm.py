"""Communication fields of one event of a Kineto file.

Up to three host events and one kernel describe the same call, each in part; they are joined
elsewhere. Here an event becomes a :class:`CommRecord` of its own fields:

* ``c10d::allreduce_``: shapes of the operator's arguments, the output before the input;
* ``record_param_comms``: named fields (PyTorch 2.2 and later), before that arguments by position;
* ``nccl:all_reduce`` (``gloo:``, ``mpi:``, ``ucc:``, other ``...ccl:``): shapes of the input,
  or of the received tensors;
* ``_C_custom_ar::all_reduce``, ``symm_mem::two_shot_all_reduce_``: shape of the first tensor,
  and the group's name among the arguments of the latter;
* a kernel with ``Collective name`` in its ``args``: named fields.

``CommRecord.collective`` is the event's own word without the prefix up to the colon, and without
the pair of ranks in ``nccl:send 0->1``; it is "" for ``record_param_comms`` without named fields.

Arguments of ``record_param_comms`` by position, as versions of its macros in
``ParamCommsUtils.hpp`` write them; tensors come first, and are absent in ``wait``:

========  =============================================================================
6 (+1)    sequence, pointer to the group, rank, name, input splits, output splits
7 (+1)    the same and the group's size
9 (+1)    sequence, group, rank, name, splits, splits, first rank, stride, group's size
========  =============================================================================

In the last, the group is an id, in later versions a (name, description) pair; the sequence became a
pair too, and pairs are not recorded, so the named fields are read instead. ``rank`` is the root or
the peer, if the call has one.

Of a list of more than 30 ranks PyTorch keeps the first 29 and the last: ``[0, 2, 4, ..., 126]``.
If these and the size of the group fit one arithmetic sequence, that is the list; else it is
unknown.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Raw

from simulator.support.errors import shown
from simulator.support.quantities import whole_of
from traces.core.events import CommRecord
from traces.core.rank_graph import ANNOTATION, CUSTOM, OPERATOR, PARAM_COMMS
from traces.kineto.schema import (
    CommArgs,
    LooseNumber,
    decode_comm,
    integers,
    unwrapped,
    whole_number,
)


def comm_record(name: str, event: Raw) -> CommRecord:
    """Read the communication fields of an event; ``ValueError`` if one has an unexpected type."""
    args = decode_comm(event).args or CommArgs()
    if args.collective is None:
        dims = args.dims_old if bytes(args.dims) == b"null" else args.dims
        columns = (bytes(dims), bytes(args.types), bytes(args.values))
        if name == PARAM_COMMS:  # with a sequence number: no other is like it
            return _from_positions(*_arguments(*columns))
        return _from_arguments(name, *columns)
    peer = args.destination if args.destination is not None else args.source
    size = _count(args.group_size, "Group size")
    ranks, elided = group_ranks(args.group_ranks, size)
    return CommRecord(
        collective=args.collective,
        in_elements=_count(args.in_elements, "In msg nelems"),
        out_elements=_count(args.out_elements, "Out msg nelems"),
        dtype=args.dtype or "",
        group_key="" if args.group_name is None else str(args.group_name),
        group_label=args.group_label or "",
        group_ranks=ranks,
        group_size=size,
        sequence=whole_number(args.sequence, "Seq"),
        in_split=integers(args.in_split) or (),
        out_split=integers(args.out_split) or (),
        peer=_count(peer, "Dst Rank"),
        group_peer=_count(args.rank, "Rank") if args.collective in ("send", "recv") else None,
        elided=elided,
        elided_split=any(
            bytes(piece).find(b"...") >= 0 and integers(piece) is None
            for piece in (args.in_split, args.out_split)
        ),
    )


@lru_cache(maxsize=1 << 12)
def _from_arguments(name: str, dims: bytes, types: bytes, values: bytes) -> CommRecord:
    """Read a record from an operator's arguments: a program calls with few different ones."""
    arguments = _arguments(dims, types, values)
    if name.startswith(OPERATOR):
        return _from_operator(name.removeprefix(OPERATOR), *arguments)
    if CUSTOM.match(name):
        return _from_custom(name, *arguments)
    return _from_annotation(name, *arguments)


_WITH_GROUP_SIZE = (7, 9)
_WITH_POINTER = (6, 7)


def _from_positions(dims: list[Any], types: list[str], values: list[str]) -> CommRecord:
    tensors = int(len(types) in (8, 10) or (len(types) == 7 and types[-1] != "Scalar"))
    rest = len(types) - tensors
    sized = rest in _WITH_GROUP_SIZE
    fields = [*values[tensors:], *[""] * rest][:rest]
    pointer = fields[1] if rest >= min(_WITH_POINTER) else ""
    if rest in _WITH_POINTER and pointer == "0":
        pointer = ""  # a call without a group
    elements, dtype = _elements(dims, types, 0) if tensors else (None, "")
    return CommRecord(
        collective="",
        in_elements=elements,
        dtype=dtype,
        group_key=pointer,
        group_size=whole_of(fields[-1]) if sized else None,
        sequence=whole_of(fields[0]) if fields else None,
        in_split=_splits(fields, 4),
        out_split=_splits(fields, 5),
    )


_OUTPUT_FIRST = re.compile(r"_?(all_?gather|reduce_?scatter|all_?to_?all|gather|scatter)")
"""Operators of ``c10d`` whose first argument is the output and the second the input."""
_RECEIVES = ("recv_", "recv_any_source_")
_SENDS = ("send",)


def _from_operator(word: str, dims: list[Any], types: list[str], values: list[str]) -> CommRecord:
    first, dtype = _elements(dims, types, 0)
    second, second_dtype = first, dtype
    if _OUTPUT_FIRST.match(word):
        second, second_dtype = _elements(dims, types, 1)
    splits = word.startswith("alltoall_base")
    lists = [
        _listed(dims, types, position) if word.startswith("alltoall") else () for position in (0, 1)
    ]
    peered = word in (*_SENDS, "recv_")
    return CommRecord(
        collective=word,
        in_elements=None if word in _RECEIVES else second,
        out_elements=None if word in _SENDS else first,
        dtype=dtype or second_dtype,
        in_split=_splits(values, 4) if splits else lists[1],
        out_split=_splits(values, 3) if splits else lists[0],
        group_peer=whole_of(values[2]) if peered and len(values) > 2 else None,
    )


_GROUP_NAMED = {"all_reduce": 2, "all_gather": 1}
"""Position of ``group_name`` in symmetric memory's operators, from their schemas."""


def _from_custom(name: str, dims: list[Any], types: list[str], values: list[str]) -> CommRecord:
    library, _, word = name.partition("::")
    tensors = (_elements(dims, types, position) for position in range(len(types)))
    elements, dtype = next((tensor for tensor in tensors if tensor[0] is not None), (None, ""))
    named = next((at for kind, at in _GROUP_NAMED.items() if kind in word), len(values))
    is_symmetric = library == "symm_mem" and named < len(values)
    return CommRecord(
        collective=word,
        in_elements=elements,
        dtype=dtype,
        group_key=values[named].strip("'\"") if is_symmetric else "",
    )


def _from_annotation(name: str, dims: list[Any], types: list[str], _: list[str]) -> CommRecord:
    parsed = ANNOTATION.match(name)
    word, peer = (parsed[1], parsed[3]) if parsed else (name, None)
    parts = [_elements(dims, types, position) for position in range(len(types))]
    counted = [elements for elements, dtype in parts if elements is not None]
    dtypes = {dtype for _, dtype in parts}
    elements = sum(counted) if counted and len(counted) == len(parts) else None
    receives = word.startswith("recv")
    return CommRecord(
        collective=word,
        in_elements=None if receives else elements,
        out_elements=elements if receives else None,
        dtype=dtypes.pop() if len(dtypes) == 1 else "",
        group_peer=whole_of(peer or ""),
    )


def _arguments(*columns: bytes) -> tuple[list[Any], list[str], list[str]]:
    """Shapes, types and values of an operator's arguments; equal in length if recorded."""
    dims, types, values = map(unwrapped, columns)
    for which, column in (("Input Dims", dims), ("Input type", types), ("Concrete Inputs", values)):
        if not isinstance(column, list | None):
            raise ValueError(f"field {which!r}: {shown(column)} is not a list")  # noqa: TRY004 - of the file
    return dims or [], [str(word) for word in types or []], [str(value) for value in values or []]


_NO_TENSOR = ("", "Scalar", "ScalarList", "GenericList")


def _elements(dims: list[Any], types: list[str], position: int) -> tuple[int | None, str]:
    """Elements and dtype of a tensor or of a list of them; (None, "") if it is neither.

    A list without shapes was not recorded: PyTorch before 2.0 wrote ``[]`` for every list. A tensor
    with the shape ``[]`` has one element.
    """
    if position >= min(len(dims), len(types)) or types[position] in _NO_TENSOR:
        return None, ""
    shape, word = dims[position], types[position]
    if word.startswith("TensorList"):
        return (_product(shape) if shape else None), ""
    return _product(shape), word


def _product(shape: object) -> int:
    """Count the elements of a shape, or of all shapes in a list of them."""
    if not isinstance(shape, list):
        raise ValueError(f"field 'Input Dims': {shown(shape)} is not a shape")  # noqa: TRY004 - of the file
    if any(isinstance(part, list) for part in shape):
        return sum(_product(part) for part in shape)
    elements = 1
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise ValueError(f"field 'Input Dims': {shown(shape)} is not a shape")
        elements *= extent
    return elements


def _splits(values: Sequence[str], position: int) -> tuple[int, ...]:
    if position >= len(values) or not values[position].startswith("["):
        return ()
    return integers(Raw(values[position].encode())) or ()


def _listed(dims: list[Any], types: list[str], position: int) -> tuple[int, ...]:
    """Count the elements of each tensor of a list; () if their shapes were not recorded."""
    if position >= min(len(dims), len(types)) or not types[position].startswith("TensorList"):
        return ()
    shapes = dims[position]
    whole = isinstance(shapes, list) and all(isinstance(shape, list) for shape in shapes)
    return tuple(_product(shape) for shape in shapes) if whole else ()


def _count(value: LooseNumber, which: str) -> int | None:
    number = whole_number(value, which)
    if number is not None and number < -1:  # which is unknown
        raise ValueError(f"{which}: {number} is negative")
    return None if number == -1 else number


_MOST_RANKS = 1 << 17
"""Ranks of the largest group that is completed: no job has more accelerators yet."""
_DOTS = re.compile(r"^\[([-\d,\s]*)(\.\.\.|…)([-\d,\s]*)\]$")


def group_ranks(piece: Raw, size: int | None) -> tuple[tuple[int, ...] | None, bool]:
    """Read a list of ranks; also whether it is abbreviated and cannot be completed.

    Examples
    --------
    >>> group_ranks(Raw(b'"[0, 2, ..., 14]"'), 8)
    ((0, 2, 4, 6, 8, 10, 12, 14), False)
    >>> group_ranks(Raw(b'"[0, 2, ..., 14]"'), 9)
    (None, True)
    """
    ranks = integers(piece)
    if ranks is not None:
        return ranks or None, False
    value = unwrapped(piece)
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else value
    dotted = _DOTS.match(text.strip()) if isinstance(text, str) else None
    if dotted is None:
        if isinstance(text, str) and re.search(r"\d\.\d", text):
            raise ValueError(f"field 'Process Group Ranks': {shown(value)} has fractions of ranks")
        return None, False
    first, last = (tuple(map(int, re.findall(r"-?\d{1,18}", dotted[part]))) for part in (1, 3))
    if size is None or not (first and last):
        return None, True
    if not max(2, len(first) + len(last)) <= size <= _MOST_RANKS:
        return None, True
    step, rest = divmod(last[-1] - first[0], size - 1)
    if rest or step == 0 or (len(first) < 2 and step != 1):
        return None, True
    sequence = tuple(range(first[0], first[0] + step * size, step))
    fits = sequence[: len(first)] == first and sequence[-len(last) :] == last
    return (sequence, False) if fits and min(sequence) >= 0 else (None, True)
