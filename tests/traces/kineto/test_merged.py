"""All ranks in one file, as SGLang merges them, say what the ranks' own files say."""

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.places import SHARED
from simulator.support.errors import TraceError
from traces.core.events import RankTrace
from traces.kineto.directory import read_job
from traces.kineto.operators import recorded_operators
from traces.load import load

FORMATS = SHARED / "traces" / "formats" / "sglang_merged"
SAMPLE = Path("traces/samples/gpu-dp2-tp4")


def merge(files: Mapping[str, Path], target: Path) -> Path:
    """Write what SGLang's ``merge_profiles`` does of files, by label."""
    merged: dict[str, Any] = {"traceEvents": []}
    for label, file in files.items():
        data = file.read_bytes()
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        for event in trace.pop("traceEvents"):
            merged["traceEvents"].append({**event, "pid": f"[{label}] {event.get('pid', '')}"})
        merged = {**trace, **merged}
    target.write_text(json.dumps(merged))
    return target


@pytest.fixture(scope="module")
def sample() -> dict[int, RankTrace]:
    """Read the sample once: its ranks, and the files they are from."""
    return {trace.rank: trace for trace in read_job(SAMPLE).ranks}


def same_content(merged: RankTrace, own: RankTrace) -> bool:
    """Whether two traces of a rank have the same events; labels of lanes may differ."""
    same = [
        np.array_equal(getattr(left, column), getattr(right, column), equal_nan=True)
        for left, right in ((merged.host, own.host), (merged.device, own.device))
        for column in left.__struct_fields__
    ]
    return all(same) and merged.comms == own.comms and merged.names == own.names


def write(folder: Path, labels: Mapping[str, int], **info: object) -> Path:
    """Write a merged file by hand: a label and how many kernels; ids are the same in all."""
    events = [
        {
            **{"ph": "X", "pid": f"[{label}] {pid}", "tid": 7, "ts": 100 + 10 * i, "dur": 5},
            **{"cat": category, "name": "k", "args": {"correlation": i, **args}},
        }
        for label, kernels in labels.items()
        for i in range(kernels)
        for category, pid, args in (("kernel", 0, {"stream": 7}), ("cuda_runtime", 83, {}))
    ]
    path = folder / "merged.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": info}))
    return path


def test_a_merged_file_says_what_the_files_of_the_ranks_say(
    tmp_path: Path, sample: dict[int, RankTrace]
) -> None:
    files = {rank: trace.file for rank, trace in sample.items()}
    labels = {f"TP{rank:02d}-EP{rank:02d}": file for rank, file in files.items()}
    job = read_job(merge(labels, tmp_path / "merged.trace.json"))
    assert job.job_ranks == 8
    for merged in job.ranks:
        assert same_content(merged, sample[merged.rank])
    assert load(tmp_path / "merged.trace.json").measured_step == load(SAMPLE).measured_step


def test_stages_come_before_tensor_ranks_and_replicas_before_both(tmp_path: Path) -> None:
    pipeline = {"TP00-PP00": 1, "TP01-PP00": 2, "TP00-PP01": 3, "TP01-PP01": 4}
    job = read_job(write(tmp_path, pipeline, world_size=4))
    assert [len(trace.device) for trace in job.ranks] == [1, 2, 3, 4]
    replicas = {"TP00-DP00": 1, "TP01-DP00": 2, "TP00-DP01": 3, "TP01-DP01": 4}
    job = read_job(write(tmp_path, replicas, world_size=2))
    assert [len(trace.device) for trace in job.ranks] == [1, 2, 3, 4]
    assert job.job_ranks == 4
    attention = {"TP00-DP00": 1, "TP01-DP00": 2, "TP02-DP01": 3, "TP03-DP01": 4}
    job = read_job(write(tmp_path, attention, world_size=4))
    assert [len(trace.device) for trace in job.ranks] == [1, 2, 3, 4]
    assert job.job_ranks == 4


def test_a_replica_of_which_half_was_recorded_has_the_ranks_of_its_world(tmp_path: Path) -> None:
    labels = {f"TP0{rank}-DP0{replica}": 1 for replica in range(2) for rank in range(2)}
    with pytest.raises(TraceError, match="no file of rank 2, 3 among those of ranks 0, 1, 4, 5"):
        read_job(write(tmp_path, labels, world_size=4))


def test_groups_of_a_replica_are_of_its_ranks(tmp_path: Path, sample: dict[int, RankTrace]) -> None:
    files = {rank: trace.file for rank, trace in sample.items()}
    labels = {
        f"TP{rank:02d}-DP{replica:02d}": file
        for replica in range(2)
        for rank, file in files.items()
    }
    job = read_job(merge(labels, tmp_path / "merged.json"))
    assert job.job_ranks == 16
    for merged in job.ranks[8:]:
        own = sample[merged.rank - 8]
        shifted = [
            record.group_ranks and tuple(rank + 8 for rank in record.group_ranks)
            for record in own.comms
        ]
        assert [record.group_ranks for record in merged.comms] == shifted
        assert any(shifted)


def test_a_merged_file_beside_those_of_its_ranks_is_skipped(
    tmp_path: Path, sample: dict[int, RankTrace]
) -> None:
    for rank, trace in sample.items():
        (tmp_path / f"rank{rank}.json").write_bytes(trace.file.read_bytes())
    labels = {f"TP{rank:02d}": trace.file for rank, trace in sample.items()}
    merge(labels, tmp_path / "merged.trace.json")
    job = read_job(tmp_path)
    assert [trace.rank for trace in job.ranks] == list(range(8))
    assert [skip.file.name for skip in job.skipped] == ["merged.trace.json"]


def test_operators_of_ranks_whose_ids_are_the_same_are_kept_apart(
    tmp_path: Path, sample: dict[int, RankTrace]
) -> None:
    files = {rank: trace.file for rank, trace in sample.items()}
    merged = merge({f"TP{r}": files[r] for r in (0, 1)}, tmp_path / "merged.json")
    own = [operator for r in (0, 1) for operator in recorded_operators(files[r])]
    assert recorded_operators(merged) == own


@pytest.mark.parametrize(
    ("labels", "info", "reason"),
    [
        ({"Unknown": 1, "TP01": 1}, {}, r"label '\[Unknown\]' names no rank"),
        ({"TP00-XP01": 1}, {}, "names no rank"),
        ({"TP00-PP00": 1, "TP00-PP01": 1}, {"world_size": 8}, "which rank is which"),
        ({"TP00-EP00": 1, "TP00-EP01": 1}, {}, "several labels of one"),
        ({"TP00": 1, "TP99999999": 1}, {}, "names no rank"),
    ],
)
def test_labels_that_do_not_tell_the_ranks_are_refused(
    tmp_path: Path, labels: dict[str, int], info: dict[str, object], reason: str
) -> None:
    with pytest.raises(TraceError, match=reason):
        read_job(write(tmp_path, labels, **info))


def test_an_event_without_a_label_among_labelled_ones_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"TP00": 1, "TP01": 1})
    document = json.loads(path.read_text())
    document["traceEvents"][3]["pid"] = 83
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match="event 3: field 'pid': no label of a rank"):
        read_job(path)


@pytest.mark.parametrize("name", ["merged-megatron-tp0-tp1", "merged-sglang-decode-x2"])
def test_public_merged_profiles_have_the_kernels_of_each_rank(name: str) -> None:
    path = FORMATS / f"{name}.trace.json.gz"
    if not path.exists():
        pytest.skip("needs ../shared/traces/formats")
    counted = Counter(
        (int(event["pid"][3:5]), event["cat"] != "kernel")
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    job = read_job(path)
    assert [trace.rank for trace in job.ranks] == [0, 1]
    for trace in job.ranks:
        copies = int(trace.device.copy.sum())
        assert copies == counted[trace.rank, True]
        assert len(trace.device) - copies == counted[trace.rank, False] > 500
        assert trace.rank_source == "label of its processes"
