"""What an Execution Trace says of a communication call and of process groups.

``record_param_comms`` has, after its tensors: sequence number, group, rank, name, splits in and
out, and last the group's size. The sequence may be a pair (number, is it a message), the group a
number, a pointer or a pair (name, description). Newer traces say the same in attributes besides.
``## process_group:init ##`` lists the groups as JSON text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from simulator.support.errors import shown
from traces.core.events import CommRecord, ProcessGroup
from traces.core.rank_graph import kind_of
from traces.pytorch_et.schema import EtArgument, EtNode, tensors_in

PARAM_COMMS = "record_param_comms"
_INIT = "process_group:init"
_DTYPE = re.compile(r"Tensor\(([^()]*)\)")
_ARGUMENTS = 6
_MOST_RANKS = 10**6


@dataclass(frozen=True, slots=True)
class EtComm:
    """One ``record_param_comms``: its row, and what it says."""

    row: int
    record: CommRecord

    def with_key(self, names: Mapping[str, str]) -> "EtComm":
        """Name the group as ``process_group:init`` does where the call gives its pointer."""
        key = names.get(self.record.group_key)
        return self if key is None else replace(self, record=replace(self.record, group_key=key))


class _Config(msgspec.Struct):
    """A group in ``process_group:init``."""

    pg_name: str | int = ""
    pg_desc: str = ""
    backend_id: int | str | None = None
    ranks: list[int] | None = None
    group_size: int | None = None


_CONFIGS = msgspec.json.Decoder(list[_Config])


def is_init(name: str) -> bool:
    """Whether a node lists process groups."""
    return _INIT in name


def communication(row: int, node: EtNode) -> EtComm | None:
    """Read a ``record_param_comms``; None for any other node."""
    if node.name != PARAM_COMMS:
        return None
    inputs = node.input_values()
    record = _by_position(inputs, node.output_values())
    if node.attribute("collective_name") is not None:
        # Take what the attributes say before what stands at a position.
        size = _whole(node.attribute("pg_size"))
        sent, received = (_whole(node.attribute(f"{side}_msg_nelems")) for side in ("in", "out"))
        name, label = node.attribute("pg_name"), node.attribute("pg_desc")
        record = replace(
            record,
            collective=str(node.attribute("collective_name")),
            in_elements=record.in_elements if sent is None else sent,
            out_elements=record.out_elements if received is None else received,
            dtype=str(node.attribute("dtype") or record.dtype),
            group_key=record.group_key if name is None else str(name),
            group_label=record.group_label if label is None else str(label),
            group_size=record.group_size if size is None else size,
            group_ranks=_spaced(node, size),
        )
    return EtComm(row, record)


def process_groups(node: EtNode) -> list[tuple[ProcessGroup, str]]:
    """Read the groups that a node lists, each with the pointer that calls may name it by.

    A group without ranks is of all of them.
    """
    groups = []
    for value, _, _ in node.input_values()[:1]:
        if not isinstance(value, str):
            raise ValueError(f"process groups: {shown(value)} is not text")  # noqa: TRY004 - of the file
        for config in _CONFIGS.decode(value):
            ranks = tuple(int(rank) for rank in config.ranks or ())
            size = config.group_size if config.group_size is not None else len(ranks)
            if not 0 <= size <= _MOST_RANKS:
                raise ValueError(f"process groups: {size} is not a number of ranks")
            every = ranks or tuple(range(size)) or None
            group = ProcessGroup(str(config.pg_name), config.pg_desc, size, every)
            groups.append((group, "" if config.backend_id is None else str(config.backend_id)))
    return groups


def _by_position(inputs: Sequence[EtArgument], outputs: Sequence[EtArgument]) -> CommRecord:
    tensors = [argument for argument in inputs if "Tensor" in argument[2]]
    rest = [argument for argument in inputs if "Tensor" not in argument[2]]
    if len(rest) < _ARGUMENTS:
        return CommRecord(collective="", in_elements=_elements(tensors), dtype=_dtype(tensors))
    values = [value for value, _, _ in rest]
    sequence = values[0][0] if isinstance(values[0], list) and values[0] else values[0]
    key, label = _group(values[1])
    named = isinstance(values[3], str)
    lists = named and kind_of(values[3]) == "all_to_all"
    return CommRecord(
        collective=values[3] if named else "",
        in_elements=_elements(tensors),
        out_elements=_elements(outputs),
        dtype=_dtype([*tensors, *outputs]),
        group_key=key,
        group_label=label,
        group_size=_whole(values[-1]) if len(values) > _ARGUMENTS and key else None,
        sequence=_whole(sequence),
        in_split=_splits(values[4]) or (_listed(tensors) if lists else ()),
        out_split=_splits(values[5]) or (_listed(outputs) if lists else ()),
    )


def _spaced(node: EtNode, size: int | None) -> tuple[int, ...] | None:
    """Return a group's ranks where they are evenly spaced: first rank and stride."""
    first, stride = (
        _whole(node.attribute(f"global_rank_{field}")) for field in ("start", "stride")
    )
    if first is None or stride is None or size is None or not 0 < size <= _MOST_RANKS:
        return None
    return tuple(range(first, first + stride * size, stride)) if stride > 0 and first >= 0 else None


def _group(value: Any) -> tuple[str, str]:
    """Return the key and label of a group: a pair of them, or a number; 0 is not a group."""
    if isinstance(value, list):
        parts = [str(part) for part in value[:2]]
        return (parts[0] if parts else ""), (parts[1] if len(parts) > 1 else "")
    return ("", "") if value in (0, "0", "") else (str(value), "")


def _elements(values: Sequence[EtArgument]) -> int | None:
    """Count the elements of all tensors in values; None where there is none."""
    tensors = [tensor for value, _, _ in values for tensor in tensors_in(value)]
    return sum(tensor[3] for tensor in tensors) if tensors else None


def _listed(values: Sequence[EtArgument]) -> tuple[int, ...]:
    """Count the elements of each of several tensors: ``all_to_all`` of a list has one per rank."""
    tensors = [tensor for value, _, _ in values for tensor in tensors_in(value)]
    return tuple(tensor[3] for tensor in tensors) if len(tensors) > 1 else ()


def _dtype(values: Sequence[EtArgument]) -> str:
    dtypes = {name for _, _, kind in values for name in _DTYPE.findall(kind)}
    return dtypes.pop() if len(dtypes) == 1 else ""


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _splits(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(part) is int for part in value)
    return tuple(value) if whole else ()
