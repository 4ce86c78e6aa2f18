"""A directory of per-rank files is a job, or says what is wrong with it."""

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.places import DATA, SAMPLES
from simulator.support.errors import TraceError
from traces.core.loaded import COPIED, ODD
from traces.kineto.directory import read_job

FIRST = SAMPLES / "gloo-ddp-4" / "rank0.json.gz"


def put(
    folder: Path, rank: int | None, *, name: str = "", steps: tuple[int, ...] = (3,), **info: object
) -> Path:
    """Write a small trace of one rank into a folder."""
    known = {} if rank is None else {"distributedInfo": {"rank": rank, **info}}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100, "dur": 5},
        *(
            {
                **{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}"},
                **{"ts": 9 + 10 * at, "dur": 9},
            }
            for at, step in enumerate(steps)
        ),
    ]
    path = folder / (name or f"file{rank}.json")
    path.write_text(json.dumps({**known, "traceEvents": events}))
    return path


def test_ranks_are_sorted_whatever_the_files_are_called(tmp_path: Path) -> None:
    for rank, name in ((1, "a"), (0, "b.json"), (2, "c.trace")):
        put(tmp_path, rank, name=name, world_size=3)
    job = read_job(tmp_path)
    assert [trace.rank for trace in job.ranks] == [0, 1, 2]
    assert (job.job_ranks, job.job_ranks_source) == (3, "distributedInfo.world_size")
    assert (job.skipped, job.notes) == ((), ())


def test_a_file_alone_that_does_not_tell_is_rank_0() -> None:
    job = read_job(DATA / "kineto_old_schema.json")
    assert job.ranks[0].rank == 0
    assert job.ranks[0].rank_source == "assumed: the only file"
    assert (job.job_ranks, job.job_ranks_source) == (1, "the highest rank of the files")


def test_a_file_alone_in_its_directory_too(tmp_path: Path) -> None:
    shutil.copy(DATA / "kineto_old_schema.json", tmp_path / "trace.json")
    assert read_job(tmp_path).ranks[0].rank_source == "assumed: the only file"


def test_the_largest_communicator_tells_how_many_ranks_there_are(tmp_path: Path) -> None:
    text = json.loads((DATA / "kineto_positions_rank0.json").read_text())
    del text["distributedInfo"]
    (tmp_path / "rank2.json").write_text(json.dumps(text))
    job = read_job(tmp_path)
    assert (job.job_ranks, job.job_ranks_source) == (8, "the largest communicator")
    assert job.notes == ("1 of 8 ranks were recorded: 2",)


def test_what_is_no_trace_is_skipped_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, 0)
    (tmp_path / "README.md").write_text("# A job")
    (tmp_path / "card.yaml").write_text("{broken")
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "half.et.gz").write_bytes(gzip.compress(b"{" * 99)[:20])
    (tmp_path / "et_0.json").write_text('{"schema": "1.0.1", "nodes": []}')
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "old").mkdir()
    job = read_job(tmp_path)
    assert len(job.ranks) == 1
    assert {skip.file.name: skip.reason.split(":")[0] for skip in job.skipped} == {
        "README.md": "not JSON",
        "card.yaml": "the JSON (7 bytes) is broken",
        "empty.log": "the file is empty; record the trace again",
        "half.et.gz": "the gzip data are damaged",
        "et_0.json": "an execution trace (PyTorch or Chakra), not a profiler trace",
        "config.json": "JSON without traceEvents",
        "old": "not a file; sub-directories are not searched",
    }


def refused(path: Path, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_job(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_broken_file_among_them_is_refused(tmp_path: Path) -> None:
    put(tmp_path, 0)
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{')
    refused(tmp_path, r"rank1\.json: .*broken")


@pytest.mark.parametrize("name", ["rank1.json", "rank1.json.gz"])
def test_an_empty_file_among_them_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, 0)
    (tmp_path / name).write_bytes(b"")
    refused(tmp_path, "empty")


def test_a_copy_of_a_file_is_no_other_rank(tmp_path: Path) -> None:
    put(tmp_path, None, name="rank0.json")
    shutil.copy(tmp_path / "rank0.json", tmp_path / "rank1.json")
    (tmp_path / "._rank0.json").write_bytes(b"\0\5\x16\7")  # what macOS writes beside a file
    said = "rank1.json has the same events as rank0.json, not another rank's recording"
    assert said in read_job(tmp_path).notes
    (tmp_path / "rank1.json").unlink()
    put(tmp_path, None, name="rank1.json", steps=(3, 4))
    assert [trace.rank for trace in read_job(tmp_path).ranks] == [0, 1]


def forged(document: dict[str, Any], shift: float) -> str:
    """The recording of rank 0 as that of rank 1: spaces, order of keys and events, times, ids."""
    document["distributedInfo"]["rank"] = 1
    for event in document["traceEvents"]:
        event["ts"] += shift
        event |= {key: event[key] + 100 for key in ("pid", "tid") if isinstance(event[key], int)}
    document["traceEvents"].reverse()
    return json.dumps(document, indent=1, sort_keys=True)


@pytest.mark.parametrize("shift", [0.0, 7.0, 3_000_000.0])
def test_a_copy_written_otherwise_is_no_other_rank(tmp_path: Path, shift: float) -> None:
    (tmp_path / "rank0.json").write_bytes(gzip.decompress(FIRST.read_bytes()))
    (tmp_path / "rank1.json").write_text(
        forged(json.loads((tmp_path / "rank0.json").read_bytes()), shift)
    )
    said = "rank1.json has the same events as rank0.json, not another rank's recording"
    assert said in read_job(tmp_path).notes
    assert not any(COPIED in note for note in read_job(FIRST.parent).notes)


def test_what_is_named_like_a_rank_and_is_no_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path, 0)
    (tmp_path / "latest.log").symlink_to("gone")
    assert read_job(tmp_path).skipped[0].file.name == "latest.log"
    (tmp_path / "rank1.json").symlink_to("gone")
    refused(tmp_path, r"rank1\.json: links to nothing")
    (tmp_path / "rank1.json").unlink()
    os.mkfifo(tmp_path / "rank1.json")
    refused(tmp_path, r"rank1\.json: is not a regular file")


def test_nothing_to_read(tmp_path: Path) -> None:
    refused(tmp_path / "none", "cannot be read: no such file")
    refused(tmp_path, "no profiler trace in this directory: it is empty")
    (tmp_path / "notes.txt").write_text("none")
    refused(tmp_path, r"no profiler trace in this directory \(1 skipped; notes.txt: not JSON")


def test_two_files_of_one_rank_are_both_named(tmp_path: Path) -> None:
    put(tmp_path, 1, name="a.json")
    put(tmp_path, 1, name="b.json")
    refused(tmp_path, r"b\.json: also rank 1, like .*a\.json")


def test_two_files_that_do_not_tell_are_refused(tmp_path: Path) -> None:
    put(tmp_path, None, name="first.json")
    put(tmp_path, 1, name="second.json")
    refused(tmp_path, r"first\.json: which rank is this")


@pytest.mark.parametrize(
    ("present", "missing"),
    [((0, 1, 3), "2"), ((0, 2), "1"), ((1, 2, 3), "0"), ((0, 1, 2, 5), "3, 4")],
)
def test_a_rank_lost_from_the_middle_is_missed(
    tmp_path: Path, present: tuple[int, ...], missing: str
) -> None:
    for rank in present:
        put(tmp_path, rank, world_size=8)
    refused(tmp_path, f"no file of rank {missing} among")
    with pytest.raises(TraceError, match="--replicate"):
        read_job(tmp_path)
    job = read_job(tmp_path, sample=True)
    assert job.notes[0].startswith(f"{len(present)} of 8 ranks were recorded")


@pytest.mark.parametrize("present", [(0, 8), (0, 1), (7,), (3, 11), (0, 3)])
def test_a_few_ranks_of_many_are_a_sample(tmp_path: Path, present: tuple[int, ...]) -> None:
    for rank in present:
        put(tmp_path, rank, world_size=16)
    job = read_job(tmp_path)
    assert job.job_ranks == 16
    assert len(job.notes) == 1


def test_files_of_different_jobs(tmp_path: Path) -> None:
    put(tmp_path, 0, world_size=2)
    put(tmp_path, 1, world_size=4)
    refused(tmp_path, r"file1\.json: distributedInfo.world_size is 4, but 2 in .*file0\.json")
    put(tmp_path, 0, backend="nccl")
    put(tmp_path, 1, backend="gloo")
    refused(tmp_path, "distributedInfo.backend is gloo, but nccl in")


def test_a_rank_outside_the_world_another_file_tells(tmp_path: Path) -> None:
    put(tmp_path, 0, world_size=2)
    put(tmp_path, 1)
    put(tmp_path, 2)
    refused(tmp_path, r"file2\.json: rank 2 in a world of 2")


def test_files_of_different_steps(tmp_path: Path) -> None:
    put(tmp_path, 0, steps=(3, 4))
    put(tmp_path, 1, steps=(5,))
    refused(tmp_path, r"file1\.json: ProfilerStep 5, but 3, 4 in .*file0\.json: no step in common")
    put(tmp_path, 1, steps=(4, 5))
    assert read_job(tmp_path).notes == (
        "the ranks recorded different steps (rank 0: 3, 4; rank 1: 4, 5)",
    )


def test_files_of_different_times_are_told(tmp_path: Path) -> None:
    put(tmp_path, 0)
    path = put(tmp_path, 1)
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "baseTimeNanoseconds": 60 * 10**9}))
    assert "rank 1 begins 60 s after rank 0 has ended" in read_job(tmp_path).notes[0]


@pytest.mark.parametrize(
    ("name", "rank"), [("decodes-32.json", 0), ("job_rank3.json", 3), ("trace.1.json", 0)]
)
def test_a_number_in_a_single_files_name_is_a_rank_only_if_it_says_so(tmp_path, name, rank):
    file = put(tmp_path, None, name=name)
    for job in (read_job(file), read_job(tmp_path)):
        assert [head.rank for head in job.ranks] == [rank]
        assert job.job_ranks == rank + 1


def in_world(*groups: list[list[int]]) -> list[dict[str, Any]]:
    """What each of three ranks says of its files' rank, step and groups of pairs."""
    configs = [
        [{"pg_name": str(ranks[0]), "pg_size": 2, "ranks": ranks} for ranks in own]
        for own in groups
    ]
    return [{"world_size": 3, "pg_config": config} for config in configs]


@pytest.mark.parametrize(
    ("infos", "note"),
    [
        (in_world([[0, 1]], [[0, 1], [1, 2]], [[1, 2]]), ""),
        (in_world([[0, 1]], [[0, 1], [1, 2]], [[0, 2]]), "group '0' is ranks 0, 1 in rank0.json"),
        (
            [{"name": f"rank{rank}.json"} for rank in (1, 0, 2)],
            "rank1.json is of rank 0, by its distributedInfo",
        ),
        ([{"name": f"node1_rank{rank}.json"} for rank in (3, 4, 5)], ""),
    ],
)
def test_files_that_contradict_one_another_are_doubted(
    tmp_path: Path, infos: list[dict[str, Any]], note: str
) -> None:
    for rank, info in enumerate(infos):
        put(tmp_path, rank, **{"name": f"rank{rank}.json", **info})
    doubts = [doubt for doubt in read_job(tmp_path).notes if ODD in doubt]
    assert len(doubts) == bool(note)
    assert all(doubt.startswith(note) for doubt in doubts)


def test_steps_in_another_order_are_refused(tmp_path: Path) -> None:
    for rank, steps in enumerate([(3, 4, 5), (4, 5), (5, 4)]):
        put(tmp_path, rank, steps=steps)
    refused(tmp_path, "steps 5, 4 follow one another in another order than in .*, 4, 5")
