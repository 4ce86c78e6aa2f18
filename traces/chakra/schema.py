"""Chakra's protobuf messages, their descriptors built at run time: no generated files, no protoc.

Field numbers are those of mlcommons/chakra ``schema/protobuf/et_def.proto``. The first message of a
file was once ``GlobalMetadata {attr = 1}`` and is ``{version = 1, attr = 2}`` now. Attributes of
nodes are left encoded until :class:`Attributes` decodes them: equal attributes are decoded
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

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

_PACKAGE = "ChakraProtoMsg"
_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
_FIRST_VALUE_FIELD = 3
"""The number of the first field of ``AttributeProto.value``; a scalar and a list per type follow.
"""


class ChakraAttribute(Protocol):
    """``AttributeProto``: a name and one value of any of the types."""

    name: str

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802 - protobuf's own name
        """Return the field that has the value."""


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


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="twofold/et_def.proto", package=_PACKAGE, syntax="proto3")
    enum = EnumDescriptorProto(name="NodeType")
    for number, name in enumerate(TYPES):
        enum.value.add(name=name, number=number)
    file.enum_type.append(enum)
    for scalar in _SCALARS:
        _add(file, _list_name(scalar), (1, "values", scalar, "many"))
    _add_attribute(file)
    attributes = ("attr", "AttributeProto", "many")
    _add(file, "GlobalMetadata", (1, "version", "string", "one"), (2, *attributes))
    _add(file, "OldMetadata", (1, *attributes))
    texts = ((number, name, "string", "one") for number, name in _TEXTS)
    _add(file, "IOInfo", *texts)
    _add_node(file, "Node", attributes)
    _add_node(file, "PackedNode", ("attr", "bytes", "many"))
    return file


def _add_node(file: FileDescriptorProto, name: str, attributes: tuple[str, str, str]) -> None:
    _add(
        file,
        name,
        (1, "id", "uint64", "one"),
        (2, "name", "string", "one"),
        (3, "type", "NodeType", "one"),
        (4, "ctrl_deps", "uint64", "many"),
        (5, "data_deps", "uint64", "many"),
        (6, "start_time_micros", "uint64", "one"),
        (7, "duration_micros", "uint64", "one"),
        (8, "inputs", "IOInfo", "one"),
        (9, "outputs", "IOInfo", "one"),
        (10, *attributes),
    )


_TEXTS = ((1, "values"), (2, "shapes"), (3, "types"))


def _list_name(scalar: str) -> str:
    return f"{scalar.capitalize()}List"


def _add_attribute(file: FileDescriptorProto) -> None:
    fields = [(1, "name", "string", "one"), (2, "doc_string", "string", "one")]
    number = _FIRST_VALUE_FIELD
    for scalar in _SCALARS:
        fields.append((number, f"{scalar}_val", scalar, "one"))
        fields.append((number + 1, f"{scalar}_list", _list_name(scalar), "one"))
        number += 2
    message = _add(file, "AttributeProto", *fields)
    message.oneof_decl.add(name="value")
    for value in message.field:
        if value.number >= _FIRST_VALUE_FIELD:
            value.oneof_index = 0


def _add(
    file: FileDescriptorProto, name: str, *fields: tuple[int, str, str, str]
) -> DescriptorProto:
    message = file.message_type.add(name=name)
    for number, field_name, kind, count in fields:
        field = message.field.add(name=field_name, number=number)
        many = count == "many"
        field.label = (
            FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
        )
        if kind in _SCALARS:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        else:
            is_enum = kind == "NodeType"
            field.type = (
                FieldDescriptorProto.TYPE_ENUM if is_enum else FieldDescriptorProto.TYPE_MESSAGE
            )
            field.type_name = f".{_PACKAGE}.{kind}"
    return message


def _classes() -> dict[str, Any]:
    pool = DescriptorPool()
    pool.Add(_file())
    names = ("Node", "PackedNode", "AttributeProto", "GlobalMetadata", "OldMetadata")
    return {n: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{n}")) for n in names}


_CLASSES = _classes()
NodeMessage = _CLASSES["Node"]
PackedMessage = _CLASSES["PackedNode"]
"""A node whose attributes are left encoded; both have the same bytes."""
AttributeMessage = _CLASSES["AttributeProto"]
MetadataMessage = _CLASSES["GlobalMetadata"]
OldMetadataMessage = _CLASSES["OldMetadata"]


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
        """Return the attributes that are read, by name; of duplicates the first, as in ASTRA-sim.

        Raises
        ------
        DecodeError
            If one is not of Chakra's schema.
        """
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
