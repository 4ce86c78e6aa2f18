"""A trace without what names the machine it was recorded on."""

import json
import platform
from typing import Any

_NAMING = ("host_name", "traceName", "username", "trace_id")
"""Keys of a trace's head: the host, the path that it was written to, the user."""


def anonymised(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace without its host's name and paths.

    Raises
    ------
    ValueError
        If the host's name stands anywhere else in it: then it is not written.

    Examples
    --------
    >>> anonymised({"host_name": "carbon", "traceEvents": []})
    {'traceEvents': []}
    """
    kept = {key: value for key, value in trace.items() if key not in _NAMING}
    host, text = platform.node(), json.dumps(kept)
    found = [word for word in (host, "/root/", "/home/") if len(word) > 3 and word in text]
    if found:
        raise ValueError(f"the trace still names {', '.join(found)}: see benchmarks/live/anonymous")
    return kept
