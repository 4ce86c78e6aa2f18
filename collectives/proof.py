"""Proof that a schedule computes its collective, by running it on sets of contributions.

The state of a rank's chunk is the set of ranks whose data have been added into it. A collective is
two conditions on these sets: which ranks contribute to which chunk at the start (pre), and which
must hold which chunk whole at the end (post). *Whole* means every contribution, each exactly once.
"""

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.schedule import Schedule, Step
from simulator.support.arrays import Ints, Mask
from simulator.support.errors import ScheduleError

Condition = Callable[[Schedule, Ints], Mask]


def _all_ranks(schedule: Schedule, owner: Ints) -> Mask:
    return np.ones((schedule.ranks, len(owner)), dtype=bool)


def _owner(schedule: Schedule, owner: Ints) -> Mask:
    owned: Mask = np.arange(schedule.ranks)[:, None] == owner
    return owned


def _root(schedule: Schedule, owner: Ints) -> Mask:
    return _owner(schedule, np.zeros_like(owner))


def _receiver(schedule: Schedule, owner: Ints) -> Mask:
    part = np.arange(len(owner), dtype=np.int32) % schedule.parts
    return _owner(schedule, part * schedule.ranks // schedule.parts)


class Collective(Struct, frozen=True):
    """Pre- and postcondition: shape ``(ranks, chunks)``, true where a rank has the chunk.

    If ``repeatable``, a contribution may be added twice: a barrier only collects which ranks
    arrived.
    """

    begins: Condition
    ends: Condition
    repeatable: bool = False


COLLECTIVES: dict[str, Collective] = {
    "all_reduce": Collective(_all_ranks, _all_ranks),
    "all_gather": Collective(_owner, _all_ranks),
    "reduce_scatter": Collective(_all_ranks, _owner),
    "all_to_all": Collective(_owner, _receiver),
    "broadcast": Collective(_root, _all_ranks),
    "reduce": Collective(_all_ranks, _root),
    "gather": Collective(_owner, _root),
    "scatter": Collective(_root, _owner),
    "barrier": Collective(_all_ranks, _all_ranks, repeatable=True),
    "send_receive": Collective(
        _root, lambda schedule, owner: _owner(schedule, np.full_like(owner, schedule.ranks - 1))
    ),
}
"""Conditions by kind. The root is rank 0; a message goes from rank 0 to the last (1)."""


def check(schedule: Schedule, owner: Ints | None = None, receiver: Ints | None = None) -> None:
    """Prove that a schedule computes its collective, by running it on sets of contributions.

    Within a step all transfers read the state before the step. Nothing is returned: a wrong
    schedule raises.

    Parameters
    ----------
    schedule
        The schedule to prove; its ``kind`` determines what it must compute.
    owner
        Per chunk, the rank that contributes it (all-gather, gather, all-to-all) or must end with
        it (reduce-scatter, scatter), shape ``(chunks,)``. By default the chunks are assigned in
        blocks of equal length: chunk r belongs to rank r where there are as many chunks as ranks,
        and chunk ``source * n + target`` goes from ``source`` to ``target`` in an all-to-all.
        Other owners are for schedules whose ranks were renumbered
        (:func:`collectives.algorithms.hierarchical.placed`).
    receiver
        Per chunk of an all-to-all with unequal sizes, the rank that must end with it, shape
        ``(chunks,)``.

    Raises
    ------
    ScheduleError
        Naming step, rank and chunk: a rank sends a chunk that it does not have, adds a contribution
        twice or to a buffer that holds nothing, loses one to a copy, receives two different copies
        in one step, or does not meet the postcondition.

    Examples
    --------
    >>> from collectives import ALGORITHMS
    >>> check(ALGORITHMS["all_reduce"]["ring"](8))
    """
    collective = _collective(schedule, even=receiver is None)
    owner = _default_owner(schedule) if owner is None else owner
    if len(owner) != schedule.chunks:
        raise ScheduleError(f"{schedule}: {len(owner)} owners for {schedule.chunks} chunks")
    state = _State(schedule, collective.begins(schedule, owner), repeatable=collective.repeatable)
    for number, step in enumerate(schedule.steps):
        for repetition, source, target, chunk in _transfers(schedule, number, step):
            where = f"{schedule}, step {number}, repetition {repetition}"
            state.carry_out(where, source, target, chunk, reduce=step.reduce)
    if receiver is None:
        state.compare(collective.ends(schedule, owner) & _not_empty(schedule))
    elif len(receiver) != schedule.chunks:
        raise ScheduleError(f"{schedule}: {len(receiver)} receivers for {schedule.chunks} chunks")
    else:
        state.compare(_owner(schedule, receiver))


def _not_empty(schedule: Schedule) -> Mask:
    """Mark the chunks that are not empty, shape ``(1, chunks)``; others need not arrive."""
    if schedule.lengths is None:
        return np.ones((1, schedule.chunks), dtype=bool)
    return (schedule.lengths > 0)[None, :]


def _collective(schedule: Schedule, *, even: bool) -> Collective:
    if schedule.kind not in COLLECTIVES:
        raise ScheduleError(f"{schedule}: kind is not one of {', '.join(COLLECTIVES)}")
    buffers = schedule.ranks if schedule.kind == "all_to_all" else 1
    if even and schedule.chunks != buffers * schedule.parts:
        raise ScheduleError(
            f"{schedule}: {buffers} buffers of {schedule.parts} parts are not "
            f"{schedule.chunks} chunks"
        )
    if schedule.kind == "send_receive" and schedule.ranks > 2:
        raise ScheduleError(f"{schedule}: a message has one sender and one receiver")
    return COLLECTIVES[schedule.kind]


def _default_owner(schedule: Schedule) -> Ints:
    owned = {_owner, _receiver} & {
        COLLECTIVES[schedule.kind].begins,
        COLLECTIVES[schedule.kind].ends,
    }
    if owned and schedule.parts % schedule.ranks:
        raise ScheduleError(
            f"{schedule}: {schedule.parts} parts cannot be dealt out evenly to the ranks"
        )
    return (np.arange(schedule.chunks) * schedule.ranks // schedule.chunks).astype(np.int32)


def _transfers(
    schedule: Schedule, number: int, step: Step
) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """Yield each repetition as columns with one row per chunk sent."""
    # Chunks of a transfer are consecutive: its first, and 0 to count - 1 beyond that.
    within = np.concatenate([np.arange(count, dtype=np.int32) for count in step.count])
    source, target = np.repeat(step.source, step.count), np.repeat(step.target, step.count)
    for repetition in range(step.repeats):
        chunk = np.repeat(step.chunks_at(repetition), step.count) + within
        wrong = np.flatnonzero(chunk >= schedule.chunks)
        if len(wrong):
            raise ScheduleError(
                f"{schedule}, step {number}, repetition {repetition}: rank {source[wrong[0]]} "
                f"sends chunk {chunk[wrong[0]]}, which does not exist"
            )
        yield repetition, source, target, chunk


class _State:
    """Contributions that each rank holds of each chunk, while the schedule runs.

    ``held[rank, chunk, k]``: the rank has the contribution of the k-th of the chunk's contributors.
    """

    def __init__(self, schedule: Schedule, begins: Mask, *, repeatable: bool) -> None:
        self._schedule = schedule
        self._begins = begins
        self._repeatable = repeatable
        rank, chunk = np.nonzero(begins)
        # Contributors of a chunk are numbered by rank: k is the number of contributors before it.
        contributor = (np.cumsum(begins, axis=0) - 1)[rank, chunk]
        self._held = np.zeros((*begins.shape, int(contributor.max()) + 1), dtype=bool)
        self._held[rank, chunk, contributor] = True
        self._whole = self._held.any(axis=0)

    def carry_out(
        self, where: str, source: Ints, target: Ints, chunk: Ints, *, reduce: bool
    ) -> None:
        """Read everything that is sent, then write it."""
        # A copy (fancy indexing): transfers of a step all see the state before it.
        sent = self._held[source, chunk]
        nothing = np.flatnonzero(~sent.any(axis=1))
        if len(nothing):
            row = nothing[0]
            raise ScheduleError(
                f"{where}: rank {source[row]} sends chunk {chunk[row]}, which it does not have"
            )
        # A cell is a rank's chunk, as one number; several transfers may write to it.
        cell = target.astype(np.int64) * self._schedule.chunks + chunk
        cells, first, of_cell = np.unique(cell, return_index=True, return_inverse=True)
        ranks, chunks = np.divmod(cells, self._schedule.chunks)
        before = self._held[ranks, chunks]
        if reduce:
            # Contributions are counted, not joined, so that one added twice is detected.
            total = before.astype(np.int32)
            np.add.at(total, of_cell, sent)
            alone = (np.bincount(of_cell) == 1) & ~before.any(axis=1)
            self._refuse(
                alone[:, None] & (total > 0),
                f"{where}: rank {{}} adds {{}} to a buffer that holds nothing: copy it",
                cells,
            )
            if not self._repeatable:
                self._refuse(total > 1, f"{where}: rank {{}} adds {{}} a second time", cells)
            self._held[ranks, chunks] = total > 0
        else:
            copy = sent[first]
            differs = np.zeros_like(before)
            np.logical_or.at(differs, of_cell, sent != copy[of_cell])
            self._refuse(differs, f"{where}: rank {{}} gets copies that disagree on {{}}", cells)
            self._refuse(before & ~copy, f"{where}: rank {{}} loses {{}} to a copy", cells)
            self._held[ranks, chunks] = copy

    def compare(self, ends: Mask) -> None:
        """Raise unless the postcondition holds."""
        missing = self._whole & ~self._held & ends[:, :, None]
        message = f"{self._schedule}, after the last step: rank {{}} does not have {{}}"
        self._refuse(missing.reshape(-1, missing.shape[2]), message, np.arange(ends.size))

    def _refuse(self, wrong: Mask, message: str, cells: NDArray[np.int64]) -> None:
        if wrong.any():
            row, contributor = np.argwhere(wrong)[0]
            rank, chunk = divmod(int(cells[row]), self._schedule.chunks)
            contributors = np.flatnonzero(self._begins[:, chunk])
            what = f"the contribution of rank {contributors[contributor]} to chunk {chunk}"
            raise ScheduleError(message.format(rank, what))
