"""Chakra's protobuf messages, their descriptors built at run time: no generated files, no protoc.

Field numbers are those of mlcommons/chakra ``schema/protobuf/et_def.proto``. The first message of a
file was once ``GlobalMetadata {attr = 1}`` and is ``{version = 1, attr = 2}`` now. Attributes of
nodes are left encoded until :class:`Attributes` decodes them: equal attributes are decoded
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from traces.core.files import message_classes

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL, STORAGE = range(9)
"""Types of nodes that are distinguished here."""
TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)
"""``NodeType``, in the order of their numbers."""
COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
"""``CollectiveCommType`` of our kinds; 8 is REDUCE_SCATTER_BLOCK, also a reduce-scatter."""
KIND_OF_TYPE = {number: kind for kind, number in COLLECTIVES.items()} | {8: "reduce_scatter"}


class ChakraMetadata(Protocol):
    """``GlobalMetadata``."""

    version: str
    attr: Any

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's own name
        """Encode the message."""


class ChakraNode(Protocol):
    """``ChakraNode``: one op of one rank."""

    id: int
    name: str
    type: int
    ctrl_deps: Any
    data_deps: Any
    start_time_micros: int
    duration_micros: int
    inputs: Any
    outputs: Any
    attr: Any
    """Encoded attributes where a node was read: see :mod:`traces.chakra.schema`."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's own name
        """Encode the message."""


_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
_NODE = (
    (1, "id", "uint64"),
    (2, "name", "string"),
    (3, "type", "NodeType"),
    (4, "ctrl_deps", "uint64*"),
    (5, "data_deps", "uint64*"),
    (6, "start_time_micros", "uint64"),
    (7, "duration_micros", "uint64"),
    (8, "inputs", "IOInfo"),
    (9, "outputs", "IOInfo"),
)
_ATTRIBUTE = [(1, "name", "string"), (2, "doc_string", "string")]
for _scalar in _SCALARS:  # from 3 on a scalar and a list of each type
    _number, _list = len(_ATTRIBUTE) + 1, f"{_scalar.capitalize()}List"
    _ATTRIBUTE += [
        (_number, f"{_scalar}_val", f"{_scalar}|value"),
        (_number + 1, f"{_scalar}_list", f"{_list}|value"),
    ]
_MESSAGES = {
    **{f"{scalar.capitalize()}List": [(1, "values", f"{scalar}*")] for scalar in _SCALARS},
    "AttributeProto": _ATTRIBUTE,
    "GlobalMetadata": [(1, "version", "string"), (2, "attr", "AttributeProto*")],
    "OldMetadata": [(1, "attr", "AttributeProto*")],
    "IOInfo": [(1, "values", "string"), (2, "shapes", "string"), (3, "types", "string")],
    "Node": [*_NODE, (10, "attr", "AttributeProto*")],
    "PackedNode": [*_NODE, (10, "attr", "bytes*")],
}
NodeMessage, PackedMessage, AttributeMessage, MetadataMessage, OldMetadataMessage = message_classes(
    *(_MESSAGES, {"NodeType": TYPES}, "Node", "PackedNode"),
    *("AttributeProto", "GlobalMetadata", "OldMetadata"),
)
"""Messages; a ``PackedMessage`` is a node whose attributes are left encoded: both have the same
bytes."""


OWN = "twofold_"
"""Prefix of the names of our own attributes."""
_READ = frozenset(
    (
        *("is_cpu_op", "stream", "tid", "num_ops", "tensor_size", "comm_type", "comm_size"),
        *("comm_src", "comm_dst", "comm_tag", "comm_group", "pg_name", "involved_dim"),
    )
)

AttributeValues = dict[str, Any]


@dataclass(slots=True)
class Attributes:
    """Decodes the attributes of the nodes of a file.

    Kernels of a model's layers repeat, so that most nodes have the bytes of another: those get the
    same value objects, which makes comparisons of nodes cheap.
    """

    _all: dict[tuple[bytes, ...], AttributeValues] = field(default_factory=dict)
    _one: dict[bytes, tuple[str, Any]] = field(default_factory=dict)

    def values(self, attributes: Sequence[bytes]) -> AttributeValues:
        """Return the attributes that are read, by name; of duplicates the first, like ASTRA-sim."""
        key = tuple(attributes)
        values = self._all.get(key)
        if values is None:
            values = self._all[key] = {}
            for name, value in map(self._decoded, key):
                if name in _READ or name.startswith(OWN):
                    values.setdefault(name, value)
        return values

    def _decoded(self, attribute: bytes) -> tuple[str, Any]:
        decoded = self._one.get(attribute)
        if decoded is None:
            message = AttributeMessage.FromString(attribute)
            decoded = self._one[attribute] = (message.name, attribute_value(message))
        return decoded


def attribute_value(attribute: Any) -> Any:
    """Return the value of an attribute, from any of its fields; None if there is none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return list(value.values) if which.endswith("_list") else value
