"""Execution Traces of PyTorch in each of its schemas, from one list of nodes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMAS = (
    "1.0.1",
    "1.0.2-chakra.0.0.4",
    "1.0.3-chakra.0.0.4",
    "1.1.0-chakra.0.0.4",
    "1.1.1-chakra.0.0.4",
)
ROOT, THREAD = 1, 2


def tensor(number: int, storage: int, elements: int, width: int = 4) -> list[object]:
    return [number, storage, 0, elements, width, "cuda:0"]


@dataclass
class Program:
    """A rank's nodes, in the order in which they began; ids and ``rf_id`` count up."""

    schema: str = SCHEMAS[-1]
    pid: int = 100
    nodes: list[dict[str, Any]] = field(default_factory=list)
    last: int = THREAD

    def op(
        self,
        name: str,
        parent: int = THREAD,
        inputs: list[tuple[object, str]] | None = None,
        outputs: list[tuple[object, str]] | None = None,
        **attributes: object,
    ) -> int:
        """An operator; arguments are pairs of value and type. Returns its id."""
        self.last += 1
        told = {"rf_id": self.last - THREAD, "tid": 1, "scope": 0, "fw_parent": 0}
        self._node(self.last, name, parent, inputs or [], outputs or [], told | attributes)
        return self.last

    def comm(self, collective: str, elements: int, ranks: int, parent: int = THREAD) -> int:
        """A ``record_param_comms`` as its schema writes it."""
        data = (tensor(5, 6, elements, 2), "Tensor(c10::Half)")
        tensors = [] if collective == "wait" else [([data[0]], "GenericList[Tensor(c10::Half)]")]
        new = self.schema > "1.0.3"
        group = (["0", "default_pg"], "Tuple[String,String]") if new else (4711, "Int")
        rest: list[tuple[object, str]] = [
            (7, "Int"),
            group,
            (0, "Int"),
            (collective, "String"),
            ([], "GenericList[]"),
            ([], "GenericList[]"),
            (ranks, "Int"),
        ]
        attributes: dict[str, object] = {}
        if new and tensors:
            attributes = {
                "collective_name": collective,
                "dtype": "Half",
                "in_msg_nelems": elements,
                "out_msg_nelems": elements,
                "pg_name": "0",
                "pg_desc": "default_pg",
                "pg_size": ranks,
            }
        return self.op("record_param_comms", parent, [*tensors, *rest], tensors, **attributes)

    def groups(self, *configs: dict[str, object]) -> None:
        self.op("## process_group:init ##", THREAD, [(json.dumps(list(configs)), "String")])

    def document(self) -> dict[str, object]:
        root = {"rf_id": 0, "tid": 0, "scope": 7, "fw_parent": 0}
        whole = Program(self.schema)
        whole._node(ROOT, "[pytorch|profiler|execution_trace|process]", ROOT, [], [], root)
        thread = root | {"tid": 1}
        whole._node(THREAD, "[pytorch|profiler|execution_trace|thread]", ROOT, [], [], thread)
        # Nodes are written as they end: a caller after what it called.
        nodes = sorted(self.nodes, key=lambda node: -node["id"])
        return {
            "schema": self.schema,
            "pid": self.pid,
            "time": "2024-02-01 21:01:28",
            "start_ts": 1,
            "nodes": [*nodes, *whole.nodes],
            "finish_ts": 2,
        }

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()))
        return path

    def _node(
        self,
        number: int,
        name: str,
        parent: int,
        inputs: list[tuple[object, str]],
        outputs: list[tuple[object, str]],
        told: dict[str, object],
    ) -> None:
        node: dict[str, Any] = {"id": number, "name": name}
        sides = {"inputs": inputs, "outputs": outputs}
        if self.schema == "1.0.1":
            node |= {"parent": parent, **told}
            for side, values in sides.items():
                node[side] = [value for value, _ in values]
                node[f"{side[:-1]}_shapes"] = [[] for _ in values]
                node[f"{side[:-1]}_types"] = [kind for _, kind in values]
        else:
            node["ctrl_deps"] = parent
            for side, values in sides.items():
                node[side] = {
                    "values": [value for value, _ in values],
                    "shapes": [[] for _ in values],
                    "types": [kind for _, kind in values],
                }
            node["attrs"] = [
                {"name": key, "type": "string", "value": value} for key, value in told.items()
            ]
        self.nodes.append(node)
