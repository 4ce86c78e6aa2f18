"""Graphs in files, GraphML or node-link JSON, by networkx: apart because that is slow to load."""

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx

from simulator.errors import TopologyError

_MALFORMED = (nx.NetworkXError, ParseError, ValueError, KeyError, TypeError, AttributeError)
"""What the readers of networkx raise at a file that is not what they expect."""


def read_graph(file: Path) -> "nx.Graph[Any]":
    """Parse by the ending of the name.

    Raises
    ------
    TopologyError
        If the file cannot be read, or is no graph.
    """
    try:
        if file.suffix == ".graphml":
            graph: nx.Graph[Any] = nx.read_graphml(file)
            return graph
        if file.suffix == ".json":
            return _node_link(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise TopologyError(f"{file}: cannot be read: {error.strerror}") from error
    except _MALFORMED as error:
        told = " ".join(str(error).split())
        raise TopologyError(f"{file}: not a graph: {told or type(error).__name__}") from error
    raise TopologyError(f"{file}: a graph is a .graphml or .json file")


def _node_link(data: object) -> "nx.Graph[Any]":
    """``edges`` (networkx 3.4 and later) or ``links`` (before, and d3)."""
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise TypeError("node-link JSON is a table with 'nodes' and 'edges' (or 'links')")
    key = "edges" if "edges" in data else "links"
    graph: nx.Graph[Any] = nx.node_link_graph(data, edges=key)
    return graph
