"""Chakra files written by hand, node by node."""

from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson

from traces.chakra.schema import COLL, COLLECTIVES, COMP, RECV, SEND, MetadataMessage, NodeMessage
from traces.chakra.stream import ChakraTrace, encode_stream


def node(number: int, kind: int = COMP, *, after=(), control=(), us=0, start=0, **values: Any):
    """A node; ``values`` are its attributes, each in the field its Python type suggests."""
    name = values.pop("name", f"node {number}")
    inputs = values.pop("inputs", "")
    message = NodeMessage(id=number, name=name, type=kind, duration_micros=us)
    message.start_time_micros = start
    message.data_deps.extend(after)
    message.ctrl_deps.extend(control)
    if inputs:
        message.inputs.values = inputs
    for key, value in values.items():
        attribute = message.attr.add(name=key)
        if isinstance(value, bool):
            attribute.bool_val = value
        elif isinstance(value, int):
            attribute.int64_val = value
        elif isinstance(value, float):
            attribute.double_val = value
        elif isinstance(value, list):
            attribute.bool_list.values.extend(value)
        else:
            attribute.string_val = value
    return message


def whole(node):
    """A node that was read, with its attributes decoded."""
    return NodeMessage.FromString(node.SerializeToString())


def host(number: int, **more: Any):
    return node(number, is_cpu_op=True, **more)


def collective(number: int, kind: str = "all_reduce", size: int = 1 << 20, **more: Any):
    return node(number, COLL, is_cpu_op=False, comm_type=COLLECTIVES[kind], comm_size=size, **more)


def send(number: int, source: int, target: int, *, tag: int = 0, size: int = 8, **more: Any):
    told = {"comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": size}
    return node(number, SEND, **(told | more))


def receive(number: int, source: int, target: int, *, tag: int = 0, size: int = 8, **more: Any):
    told = {"comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": size}
    return node(number, RECV, **(told | more))


def body(*nodes, version: str = "0.0.4") -> bytes:
    return encode_stream(MetadataMessage(version=version), nodes)


def write(folder: Path, *ranks, name: str = "job.{}.et") -> Path:
    """Write a file for each rank's nodes."""
    for rank, nodes in enumerate(ranks):
        (folder / name.format(rank)).write_bytes(body(*nodes))
    return folder


def write_chakra_json(trace: ChakraTrace, path: Path) -> None:
    """Write the messages of a file as ``chakra_jsonizer`` does: one JSON object after another."""
    nodes = (NodeMessage.FromString(node.SerializeToString()) for node in trace.nodes)
    path.write_text("".join(MessageToJson(message) for message in (trace.metadata, *nodes)))
