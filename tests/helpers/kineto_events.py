"""Small Kineto files for the tests of their reader."""

import json
from pathlib import Path

import numpy as np

from helpers.places import DATA
from traces.core.events import RankTrace
from traces.kineto.reader import read_ranks

CUDA = DATA / "kineto_cuda_rank0.json"


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def kernel(**changes: object) -> dict[str, object]:
    """A kernel as Kineto writes it; None removes a field."""
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 2}
    event |= changes
    return {key: value for key, value in event.items() if value is not None}


def trace(*events: dict[str, object], **header: object) -> dict[str, object]:
    return {"distributedInfo": {"rank": 0}, **header, "traceEvents": list(events)}


def names(read: RankTrace, indices: np.ndarray) -> list[str]:
    return [read.names[index] for index in indices]


def read_rank(path: Path, *, alone: bool = False) -> RankTrace:
    """Read a file of one rank."""
    (rank,) = read_ranks(path, alone=alone)
    return rank


def read(tmp_path: Path, *events: dict[str, object], **header: object) -> RankTrace:
    return read_rank(write(tmp_path / "trace.json", trace(*events, **header)))
