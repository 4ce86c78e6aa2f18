"""gloo's works name no group: it is that of the worker threads that carried them out."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.link_tapes import Tape, replay
from traces.core.rank_graph import UNKNOWN_GROUP
from traces.load import load

TENSOR, DATA = ((0, 1), (2, 3)), ((0, 2), (1, 3))
EVERYONE = tuple(range(4))
APART = {0: 0.0, 1: 0.0, 2: 170.0, 3: 170.0}
"""How much later (us) ranks of the second tensor-parallel group are in every layer."""


def elements(count: int) -> dict[str, object]:
    return {"Input Dims": [[count]], "Input type": ["float"]}


def listed(rank: int, *, unused: bool = True) -> list[tuple[str, str, Sequence[int]]]:
    """Groups of a rank in the order in which they were made, that of all ranks first."""
    made = [EVERYONE] if unused else []
    made += [ranks for ranks in (*TENSOR, *DATA) if rank in ranks]
    return [(str(number), "undefined", ranks) for number, ranks in enumerate(made)]


def grid(
    folder: Path, *, workers: int = 2, small: int = 1000, large: int = 4000, stall: float = 0.0
) -> Path:
    """Each layer: an all-reduce of tensor parallelism is waited for, one of gradients is not.

    The gradients' queue is behind: tensor parallelism's next work begins before theirs does. Those
    of the second layer end ``stall`` (us) later on the first two ranks.
    """
    for rank in range(4):
        tape = Tape(rank, 4, groups=listed(rank))
        late = APART[rank]
        for layer in range(4):
            at = 3600 * layer + late * (layer % 2)
            tape.host("aten::mm", at, 100)
            tape.host("c10d::allreduce_", at + 100, 10, **elements(large))
            own = 40 + layer % workers
            long = 2500 + (stall if layer == 1 and rank < 2 else 0)
            tape.note("gloo:all_reduce", 3600 * layer + 900, long, thread=own, **elements(large))
            tape.host("c10d::allreduce_", at + 120, 10, **elements(small))
            own = 20 + layer % workers
            tape.note("gloo:all_reduce", at + 140, 700, thread=own, **elements(small))
            tape.host("aten::add", at + 850, 100)
        tape.host("aten::add", 3600 * 3 + 3410, 100)
        tape.write(folder)
    return folder


def told(path: Path) -> dict[float, set[tuple[int, ...]]]:
    """By size (elements), the groups of calls."""
    workload = load(path).workload
    found: dict[float, set[tuple[int, ...]]] = {}
    for size, group in zip(workload.calls.size, workload.calls.group, strict=True):
        found.setdefault(float(size) / 4, set()).add(workload.groups[group].ranks)
    return found


@pytest.mark.parametrize("sizes", [(1000, 4000), (4000, 1000)])
def test_threads_that_were_made_first_serve_the_group_that_was(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """Not that of all ranks, which has no work: ends of the two pairs lie apart."""
    small, large = sizes
    assert told(grid(tmp_path, small=small, large=large)) == {small: set(TENSOR), large: set(DATA)}


def test_a_single_stall_tells_nothing_of_groups(tmp_path: Path) -> None:
    assert told(grid(tmp_path, stall=3000)) == {1000: set(TENSOR), 4000: set(DATA)}


def test_every_call_is_matched_and_reacts_to_the_network(tmp_path: Path) -> None:
    found = replay(grid(tmp_path))
    coverage = found.loaded.coverage
    assert coverage.collectives == coverage.collectives_matched == coverage.sizes_known == 16
    assert found.step == pytest.approx(found.measured, rel=1e-6)
    assert replay(tmp_path, network=2).step < 0.8 * found.step


def test_a_call_starts_after_its_own_work_was_queued(tmp_path: Path) -> None:
    """Works in the order in which they begin are not calls in the order in which they are made."""
    workload = load(grid(tmp_path)).workload
    names = [workload.names[name] for name in workload.name]
    for op in (workload.call >= 0).nonzero()[0]:
        waits = workload.edges.source[workload.edges.target == op]
        assert any("allreduce_" in names[source] for source in waits)


def test_more_workers_than_groups_have_tell_nothing(tmp_path: Path) -> None:
    """Four to a group is not how PyTorch makes them: no guess is made."""
    workload = load(grid(tmp_path, workers=4)).workload
    assert {group.label for group in workload.groups} == {UNKNOWN_GROUP}


def test_ranks_that_disagree_tell_nothing(tmp_path: Path) -> None:
    """A member without a call is not a member."""
    grid(tmp_path)
    tape = Tape(3, 4, groups=listed(3))
    tape.host("c10d::allreduce_", 100, 10, **elements(8))
    tape.note("gloo:all_reduce", 120, 700, thread=20, **elements(8))
    tape.host("aten::add", 850, 100)
    tape.write(tmp_path)
    workload = load(tmp_path).workload
    assert {group.label for group in workload.groups} == {UNKNOWN_GROUP}
