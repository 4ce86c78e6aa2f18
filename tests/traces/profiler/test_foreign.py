"""Recordings that do not belong together are refused, though they overlap in time; others never."""

import gzip
import json
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from helpers.link_tapes import Tape
from helpers.places import ROOT
from simulator.support.errors import TraceError
from traces.load import load

LIVE = ROOT / "traces" / "live"
OF_TWO = ("ddp-2", "zero3-2", "tp-latency-2", "gpipe-2", "1f1b-2", "interleaved-2")
OF_FOUR = ("ddp-sleep-4", "zero3-sleep-4", "1f1b-4", "moe-4")
NEIGHBOURS = {*pairwise(OF_TWO), *pairwise(OF_FOUR)}
"""Every program stands in for another one, and has another one stand in for it."""
PAIRS = [
    pytest.param(pair, marks=() if pair in NEIGHBOURS else pytest.mark.slow, id="+".join(pair))
    for pair in (*combinations(OF_TWO, 2), *combinations(OF_FOUR, 2))
]


def documents(name: str) -> dict[int, dict]:
    read = [json.loads(gzip.decompress(file.read_bytes())) for file in (LIVE / name).glob("*.gz")]
    return {document["distributedInfo"]["rank"]: document for document in read}


def begin(document: dict) -> float:
    """When the first step begins (us)."""
    steps = (event for event in document["traceEvents"] if "ProfilerStep" in event["name"])
    return document["baseTimeNanoseconds"] / 1e3 + min(float(event["ts"]) for event in steps)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_rank_of_another_program_is_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    """The last rank is another program's, whose steps begin when those of the others do."""
    ranks, other = documents(pair[0]), documents(pair[1])
    last = max(ranks)
    later = begin(ranks[0]) - begin(other[last])
    ranks[last] = other[last]
    ranks[last]["baseTimeNanoseconds"] += round(1e3 * later)
    for rank, document in ranks.items():
        file = tmp_path / f"rank{rank}.json.gz"
        file.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    with pytest.raises(TraceError, match=r"calls on group|call 0 on group"):
        load(tmp_path)


@pytest.mark.parametrize("name", [*OF_TWO, *OF_FOUR])
def test_ranks_of_one_run_are_never_refused(name: str) -> None:
    assert load(LIVE / name).coverage.ranks


def apart(folder: Path, rank: int, kernels: list[str], device: str) -> None:
    """Write a rank that calls nobody."""
    tape = Tape(rank=rank, world=2)
    for number, name in enumerate(kernels):
        tape.launch(20.0 * number, 7, 20.0 * number + 5, 10, name)
    tape.write(folder)
    (file,) = folder.glob(f"*{rank}*")
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"deviceProperties": [{"name": device}]}))


GEMMS, DECODE = [f"gemm_{number}" for number in range(12)], [f"decode_{n}" for n in range(12)]


@pytest.mark.parametrize(
    ("kernels", "device", "refusal"),
    [
        (GEMMS, "NVIDIA A100", ""),
        (GEMMS[:6], "NVIDIA A100", ""),
        (DECODE, "NVIDIA A100", "only 0 of"),
        (GEMMS, "AMD Instinct MI300X", "ran on AMD Instinct MI300X"),
    ],
)
def test_ranks_that_no_call_joins_have_to_run_alike(
    tmp_path: Path, kernels: list[str], device: str, refusal: str
) -> None:
    apart(tmp_path, 0, GEMMS, "NVIDIA A100")
    apart(tmp_path, 1, kernels, device)
    if not refusal:
        assert load(tmp_path).coverage.ranks == (0, 1)
        return
    with pytest.raises(TraceError, match=refusal):
        load(tmp_path)


def test_a_message_in_a_group_of_two_is_to_the_other_rank(tmp_path: Path) -> None:
    """Gloo's name none without shapes: sends are matched with the receives of the other rank."""
    ranks = documents("1f1b-2")
    for rank, document in ranks.items():
        for event in document["traceEvents"]:
            if event["name"] in ("c10d::send", "c10d::recv_"):
                del event["args"]["Concrete Inputs"]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    named, nameless = load(LIVE / "1f1b-2").workload, load(tmp_path).workload
    assert len(nameless.calls) == len(named.calls) > 0
    for name in ("call", "duration"):
        assert (getattr(nameless, name) == getattr(named, name)).all()


def test_a_group_of_more_ranks_than_the_world_is_refused_with_its_file(tmp_path: Path) -> None:
    tape = Tape(world=1, groups=[("0", "tp", (0, 1))])
    for number in range(4):
        tape.collective(40.0 * number, 7, 40.0 * number + 15, 10, group="0")
    tape.write(tmp_path)
    with pytest.raises(TraceError, match=r"names rank 1, which does not exist in a job of 1") as no:
        load(tmp_path)
    assert str(no.value).startswith(str(tmp_path))
