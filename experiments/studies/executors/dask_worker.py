"""What a Dask worker does for a study: it is offered inputs, keeps them, and answers chunks.

A worker takes inputs only if it runs the same code as the client. Inputs are kept by content, so
they are shipped to a worker once, whatever studies ask of them. A worker that has them says so as a
Dask resource, of which each chunk needs one: the scheduler hands chunks to no other worker, and to
each worker process one at a time.
"""

import pickle
from collections import OrderedDict
from collections.abc import Mapping
from platform import python_version_tuple
from typing import Any
from weakref import WeakKeyDictionary

from experiments.provenance import version
from experiments.studies.points.answers import Answer, Answerer, Chunk
from experiments.studies.points.code_identity import whole_identity

LACKS = "lacks inputs"
"""What a worker that could answer says before it has the inputs."""
_KEPT = 4
"""Inputs that a worker keeps, the latest."""


class InputsGoneError(Exception):
    """A worker was handed a chunk whose inputs it has no longer: it is to be handed out again."""


_answerers: "WeakKeyDictionary[Any, OrderedDict[str, Answerer]]" = WeakKeyDictionary()
"""What each worker of this process keeps, by the hash of the inputs."""


def code_of_this() -> dict[str, str]:
    """Say which code runs here: what the bits of an answer depend on, beside its inputs."""
    import numba
    import numpy as np

    return {
        "twofold": f"{version()} ({whole_identity()[:12]})",
        "Python": ".".join(python_version_tuple()[:2]),
        "NumPy": np.__version__,
        "Numba": numba.__version__,
    }


def difference(client: Mapping[str, str], worker: Mapping[str, str]) -> str:
    """Say which code differs; "" where none does.

    Examples
    --------
    >>> difference({"NumPy": "2.4.0"}, {"NumPy": "2.5.0"})
    'NumPy 2.5.0, not 2.4.0'
    """
    names = (name for name in client if client[name] != worker.get(name))
    return ", ".join(f"{name} {worker.get(name)}, not {client[name]}" for name in names)


async def offer(
    code: Mapping[str, str], inputs: str, content: bytes | None, dask_worker: Any = None
) -> str:
    """Offer inputs to the worker that runs this: their hash first, then their content.

    Returns
    -------
    str
        "" if it is ready, :data:`LACKS` if it needs the content, else why it cannot answer.
    """
    if reason := difference(code, code_of_this()):
        return reason
    kept = _answerers.setdefault(dask_worker, OrderedDict())
    if inputs not in kept:
        if content is None:
            return LACKS
        kept[inputs] = Answerer(pickle.loads(content))
    kept.move_to_end(inputs)
    resources = {inputs: 1.0}
    while len(kept) > _KEPT:
        resources[kept.popitem(last=False)[0]] = 0.0
    await dask_worker.set_resources(**resources)
    return ""


def answers(inputs: str, chunk: Chunk) -> list[Answer]:
    """Answer a chunk, as a task.

    Raises
    ------
    InputsGoneError
        If other studies' inputs have taken the place of these.
    """
    from distributed import get_worker

    answerer = _answerers.get(get_worker(), OrderedDict()).get(inputs)
    if answerer is None:
        raise InputsGoneError(inputs)
    return answerer.answers(chunk)
