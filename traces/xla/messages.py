"""Protobuf message classes built when needed, from a table: no generated files, no ``protoc``.

Only the fields a reader uses are listed; protobuf skips the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MessageFields = Sequence[tuple[int, str, str]]
"""``(number, name, type)``; a type with a ``*`` is repeated, one in capitals is a message."""

_FIELD = descriptor_pb2.FieldDescriptorProto


def message_class(messages: Mapping[str, MessageFields], name: str) -> Any:
    r"""Return the class of the message ``name``; ``messages`` maps each message to its fields.

    Examples
    --------
    >>> Pair = message_class({"Pair": [(1, "key", "int64"), (2, "tags", "string*")]}, "Pair")
    >>> Pair.FromString(b"\x08\x05\x12\x01a").tags[0]
    'a'
    """
    file = descriptor_pb2.FileDescriptorProto(name="own.proto", package="own", syntax="proto3")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, field, type_name in fields:
            _add_field(described, number, field, type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"own.{name}"))


def _add_field(message: Any, number: int, name: str, type_name: str) -> None:
    repeated = type_name.endswith("*")
    type_name = type_name.removesuffix("*")
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    scalar = f"TYPE_{type_name.upper()}"
    if type_name[0].isupper():
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".own.{type_name}"
    else:
        field.type = getattr(_FIELD, scalar)
