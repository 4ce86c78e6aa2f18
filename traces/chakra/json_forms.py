"""Chakra traces as JSON, in both forms that are about.

mlcommons' ``chakra_jsonizer`` writes the messages of a ``.et`` file as one JSON object after
another, in protobuf's JSON mapping. Chakra's feeder reads ``{"workload_graph": [...]}``, which has
ids, names, types, data dependencies, durations and the attributes of communication, and no more.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict, ParseError

from simulator.support.errors import TraceError
from traces.chakra.schema import ChakraNode, MetadataMessage, NodeMessage
from traces.chakra.stream import ChakraTrace, of_messages

_GRAPH = re.compile(rb'\s*\{\s*"workload_graph"\s*:')
_METADATA = frozenset({"version", "attr"})
_PASSED_OVER = frozenset({"storage"})
"""Fields of a node that are known and not read, as in a ``.et`` file."""
_SPACE = re.compile(r"\s*")
_NUMBERS = (
    "tensor_size",
    "comm_type",
    "comm_priority",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
)


class _GraphNode(msgspec.Struct):
    """A node of ``workload_graph``, as Chakra's ``json_node.cpp`` reads it."""

    id: int = msgspec.field(name="Id")
    name: str = msgspec.field(name="Name", default="")
    type: int = msgspec.field(name="NodeType", default=0)
    runtime: int = 0
    data_deps: list[int] = []
    is_cpu_op: bool | None = None
    tensor_size: int | None = None
    comm_type: int | None = None
    comm_priority: int | None = None
    comm_size: int | None = None
    comm_src: int | None = None
    comm_dst: int | None = None
    comm_tag: int | None = None
    pg_name: str | None = None


class _FeederGraph(msgspec.Struct):
    nodes: list[_GraphNode] = msgspec.field(name="workload_graph")


def is_json(head: bytes) -> bool:
    """Whether a file begins as one of the two forms does."""
    if _GRAPH.match(head):
        return True
    if not head.lstrip().startswith(b"{"):
        return False
    text = head.decode("utf-8", "replace")
    try:
        first, at = json.JSONDecoder().raw_decode(text, _skip(text, 0))
    except (ValueError, RecursionError):
        return False
    at = _skip(text, at)
    return set(first) <= _METADATA and text[at : at + 1] == "{"


def decode_json(path: Path, data: bytes) -> ChakraTrace:
    """Read a JSON form of a Chakra trace."""
    try:
        if _GRAPH.match(data):
            graph = msgspec.json.decode(data, type=_FeederGraph)
            return of_messages(path, MetadataMessage(), map(_graph_node, graph.nodes))
        objects = _objects(data.decode("utf-8"))
        metadata = ParseDict(next(objects, {}), MetadataMessage())
        nodes: list[ChakraNode] = []
        for written in objects:
            if not isinstance(written, dict):
                raise TraceError(f"{path}: node {len(nodes)}: is not a JSON object")
            try:
                fields = {key: written[key] for key in written if key not in _PASSED_OVER}
                nodes.append(ParseDict(fields, NodeMessage()))
            except ParseError as error:
                raise TraceError(f"{path}: node {len(nodes)}: {_line(error)}") from error
        return of_messages(path, metadata, nodes)
    except (ValueError, TypeError, RecursionError, ParseError) as error:
        raise TraceError(
            f"{path}: the JSON ({len(data)} bytes) is broken: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    """Take the first line of a message: protobuf lists all fields in the second."""
    return str(error).partition("\n")[0]


def _objects(text: str) -> Iterator[Any]:
    read = json.JSONDecoder().raw_decode
    at = _skip(text, 0)
    while at < len(text):
        value, at = read(text, at)
        at = _skip(text, at)
        yield value


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _graph_node(node: _GraphNode) -> ChakraNode:
    message: Any = NodeMessage(
        id=node.id,
        name=node.name,
        type=node.type,
        duration_micros=node.runtime,
        data_deps=node.data_deps,
    )
    if node.is_cpu_op is not None:
        message.attr.add(name="is_cpu_op", bool_val=node.is_cpu_op)
    for name in _NUMBERS:
        value = getattr(node, name)
        if value is not None:
            message.attr.add(name=name, int64_val=value)
    if node.pg_name is not None:
        message.attr.add(name="pg_name", string_val=node.pg_name)
    node_message: ChakraNode = message
    return node_message
