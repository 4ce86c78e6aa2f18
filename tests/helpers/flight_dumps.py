"""Dumps of PyTorch's flight recorder, with the fields of its version 2.9."""

import pickle


def entry(group, sequence, word="all_reduce", **fields):
    """A call; ``group`` is its name and description, ``fields`` are those that are not usual."""
    return {
        "record_id": sequence,
        "pg_id": int(group[0]),
        "process_group": group,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{word}",
        "time_created_ns": 10**18 + sequence,
        "input_sizes": [[2, 8]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[2, 8]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    } | fields


def message(group, sequence, word, **fields):
    """A send or a receive, as ``send 0->1``."""
    return entry(group, 0, word, p2p_seq_id=sequence, is_p2p=True, record_id=sequence, **fields)


def dump(groups, entries=(), status=None):
    """A dump; ``groups`` are names and descriptions with their ranks, ``status`` pairs by name."""
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
            for (name, desc), ranks in groups.items()
        },
        "pg_status": {
            name: {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for name, (enqueued, completed) in (status or {}).items()
        },
        "entries": list(entries),
    }


def write(folder, dumps):
    """Write dumps by rank, as PyTorch names its files, and return the folder."""
    for rank, content in dumps.items():
        data = pickle.dumps(content, protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder
