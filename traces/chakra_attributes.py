"""Attributes of Chakra nodes as values: what nodes have alike is decoded once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from traces.chakra_schema import AttributeMessage

OWN = "twofold_"
"""What the names of our own attributes begin with."""
_READ = frozenset(
    (
        *("is_cpu_op", "stream", "tid", "num_ops", "tensor_size", "comm_type", "comm_size"),
        *("comm_src", "comm_dst", "comm_tag", "comm_group", "pg_name", "involved_dim"),
    )
)

Values = dict[str, Any]


@dataclass(slots=True)
class Attributes:
    """Decodes the attributes of the nodes of a file.

    Kernels of a model's layers repeat, so that most nodes have the bytes of another: those get the
    very same values, by which one tells cheaply that two nodes are alike.
    """

    _all: dict[tuple[bytes, ...], Values] = field(default_factory=dict)
    _one: dict[bytes, tuple[str, Any]] = field(default_factory=dict)

    def values(self, attributes: Sequence[bytes]) -> Values:
        """Attributes that are read, by name; of two with one name the first, as in ASTRA-sim.

        Raises
        ------
        DecodeError
            If one is not of Chakra's schema.
        """
        key = tuple(attributes)
        found = self._all.get(key)
        if found is None:
            found = self._all[key] = {}
            for name, value in map(self._decoded, key):
                if name in _READ or name.startswith(OWN):
                    found.setdefault(name, value)
        return found

    def _decoded(self, attribute: bytes) -> tuple[str, Any]:
        found = self._one.get(attribute)
        if found is None:
            message = AttributeMessage.FromString(attribute)
            found = self._one[attribute] = (message.name, value_of(message))
        return found


def value_of(attribute: Any) -> Any:
    """Take the value of an attribute, whichever field it stands in; None if in none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return list(value.values) if which.endswith("_list") else value
