"""Provenance of an answer: version, command, settings, and the hash of every input file.

Answers consist of JSON types.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from experiments.output.document import TrustAnswer
from experiments.output.encoding import jsonable as jsonable
from simulator.support.errors import TraceError

if TYPE_CHECKING:
    from topologies.cluster.schema import Cluster


Unbounded = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})]
"""A number that may be infinite, which is null in JSON."""


DISTRIBUTION = "twofold"


Option = str | int | float | bool | None | list[str] | list[float]
"""A value of a setting, as answers give it."""


class InputFile(TypedDict):
    """A file that was read."""

    path: str
    bytes: int
    sha256: str


class ClusterIdentity(TypedDict):
    """A cluster's name, and the SHA-256 of its content: equal content, equal results."""

    name: str
    sha256: str


class Head(TypedDict):
    """The beginning of every answer: its schema, the answer in words, and how to repeat it.

    ``headline`` answers in a sentence, ``cause`` gives the reason, "" if none is known; ``trust``
    is how far to trust it, null if nothing was simulated. ``command`` is what was typed, or the
    call in Python; ``settings`` are all options that affect the answer, defaults included.
    ``cluster`` is the one that the step was simulated on first, null if there is none; ``inputs``
    are the files that were read.
    """

    schema: str
    version: str
    headline: str
    cause: str
    trust: TrustAnswer | None
    command: str
    settings: dict[str, Option]
    cluster: ClusterIdentity | None
    inputs: list[InputFile]


@cache
def version() -> str:
    """Return the version of the distribution; "unknown" without an installed distribution."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def identity(cluster: "Cluster") -> ClusterIdentity:
    """Name a cluster and hash its canonical content.

    The content is every field that differs from its default, with sorted keys, quantities to the
    last bit; the name, the description and the sources change no answer and are left out.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> a100 = load_cluster("dgx-a100")
    >>> renamed = a100.model_copy(update={"name": "mine"})
    >>> identity(a100)["sha256"] == identity(renamed)["sha256"]
    True
    """
    where = {"graph": {"file"}}  # a graph's content is hashed, not its path
    content = cluster.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={
            **dict.fromkeys(("name", "description", "sources"), True),
            **dict.fromkeys(("scale_up", "scale_out"), where),
        },
    )
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {"name": cluster.name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def graphs(cluster: "Cluster | None") -> "Inputs":
    """List the graph files of a cluster."""
    tiers = () if cluster is None else (cluster.scale_up, cluster.scale_out)
    drawn = [getattr(tier, "graph", None) for tier in tiers]
    return Inputs(
        files=tuple(Path(graph.file) for graph in drawn if graph is not None and graph.file)
    )


def hashed(files: Sequence[Path]) -> list[InputFile]:
    """Hash files, each once, several in parallel; a TraceError names one that no longer exists."""
    if not files:
        return []
    from experiments.kept_steps import digests_of  # imports readers of traces

    paths = list(dict.fromkeys(files))
    try:
        sizes = [path.stat().st_size for path in paths]
        digests = digests_of(paths)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(
            f"{error.filename}: was read, and cannot be read again for its SHA-256: {reason}"
        ) from error
    return [
        {"path": str(path), "bytes": size, "sha256": digest}
        for path, size, digest in zip(paths, sizes, digests, strict=True)
    ]


class Inputs(Struct, frozen=True):
    """Inputs of a question: traces, which may be directories, and other files.

    For traces only the files of ``ranks`` count, all if ``ranks`` is empty.
    """

    traces: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    ranks: tuple[int, ...] = ()

    def joined(self, others: "Inputs") -> "Inputs":
        """Return both: the given inputs, and those that they name."""
        return Inputs(
            (*self.traces, *others.traces), (*self.files, *others.files), self.ranks or others.ranks
        )

    def hashed(self) -> list[InputFile]:
        """List the files that were read, with their SHA-256; errors as :func:`hashed`."""
        return hashed(list(self._read()))

    def _read(self) -> Iterator[Path]:
        """Yield the files of traces, also those in directories; then the others."""
        for path in self.traces:
            if path.is_file() or path.is_dir():
                from traces.card.package import input_files  # not needed without a trace

                yield from input_files(path, self.ranks)
            elif not path.exists():
                yield path  # it existed when read: hashing reports that it is gone
        yield from (path for path in self.files if path.is_file() or not path.exists())
