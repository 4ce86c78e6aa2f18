"""Ranks that were not recorded, as copies of those that were (SPMD).

Often a trace has one rank of many. Without the others' traffic a network seems less loaded than it
is: here each missing rank runs the program of the recorded rank with its role, and takes part in
the calls of its own groups. Unlike the original, a copy has no measured times.

Groups that divide a job in the same way are a family: all tensor-parallel groups, all data-parallel
ones. The files of some ranks name the groups of these ranks; those of the others follow from lists,
or from the pattern if it is regular: ranks at distance ``stride``, in blocks that fill the job. Any
other case is refused.

A sample of ranks suffices if the others run the same program in the same time. It is recommended
only if the ranks that it leaves out were seen to be equivalent: each is compared with the recorded
rank whose copy would represent it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from simulator.calls import KINDS, SEND_RECEIVE, Group
from simulator.copied_ranks import CopiedRank, MadeCalls, RankProgram, with_copies
from simulator.support.arrays import Floats, Longs
from simulator.support.errors import TraceError, WorkloadError
from simulator.support.quantities import format_ranks, some_ranks
from simulator.workload import What, Workload
from traces.core.events import JobHead

_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe|pipeline)", re.IGNORECASE)
_NO_LABEL = ("", "undefined")
"""Labels of groups without a name in the program; the second is PyTorch's."""


def listed_groups(job: JobHead) -> tuple[Group, ...]:
    """Collect the groups that are listed with all their ranks."""
    of_ranks = (group for trace in job.ranks for group in trace.groups.values())
    groups = (
        Group(group.ranks, group.label)
        for group in (*of_ranks, *job.groups)
        if group.ranks is not None and len(set(group.ranks)) == len(group.ranks)
    )
    return tuple(dict.fromkeys(groups))


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions of ranks in the families of a job; ``listed`` are the recorded groups."""

    job_ranks: int
    listed: tuple[Group, ...]

    def counterpart(self, group: Group, member: int, rank: int) -> Group:
        """Return the group of ``rank`` in the family of one of ``member``'s groups."""
        if len(group.ranks) == 1 and group.ranks == (member,):
            return Group((rank,), group.label)
        if rank in group.ranks:
            return group
        stride = _stride(group.ranks)
        fitting = {
            listed.ranks
            for listed in self.listed
            if self._same_family(listed, group, stride) and rank in listed.ranks
        }
        if len(fitting) > 1:  # such as messages to the stage before and to the one behind
            at = group.ranks.index(member)
            fitting = {ranks for ranks in fitting if ranks[at] == rank} or fitting
        if len(fitting) == 1:
            return Group(fitting.pop(), group.label)
        if not fitting and stride is not None:
            return self._next_block(group, stride, rank)
        why = (
            "several of the groups that are listed fit" if fitting else "its ranks make no pattern"
        )
        raise TraceError(
            f"rank {rank} was not recorded, and its counterpart of group {group.label or 'group'} "
            f"({some_ranks(group.ranks)}) of rank {member} is unknown: {why}; record rank {rank}, "
            "or do not replicate"
        )

    def _same_family(self, listed: Group, group: Group, stride: int | None) -> bool:
        """Whether two groups are of one family: by label, or by pattern if they have none."""
        if listed.label != group.label or len(listed.ranks) != len(group.ranks):
            return False
        return group.label not in _NO_LABEL or _stride(listed.ranks) == stride

    def _next_block(self, group: Group, stride: int, rank: int) -> Group:
        size = len(group.ranks)
        block = stride * size
        first = rank - rank // stride % size * stride
        ranks = tuple(range(first, first + block, stride))
        where = f"group {group.label or 'group'} ({some_ranks(group.ranks)})"
        if self.job_ranks % block or group.ranks[0] // stride % size:
            raise TraceError(
                f"rank {rank} was not recorded, and its counterpart of {where} is unknown: blocks "
                f"of {size} ranks, {stride} apart, do not fill a job of {self.job_ranks} ranks"
            )
        for listed in self.listed:
            same = listed.label == group.label and group.label not in _NO_LABEL
            shared = set(listed.ranks) & set(ranks)
            if same and shared and set(listed.ranks) != set(ranks):
                raise TraceError(
                    f"rank {rank} was not recorded, and its counterpart of {where} is unknown: "
                    f"the pattern gives ({some_ranks(ranks)}), but ({some_ranks(listed.ranks)}) is"
                    " listed"
                )
        return Group(ranks, group.label)

    def pipeline(self, ends: Group) -> Group:
        """Return the smallest group that contains both ends of a message.

        Raises
        ------
        TraceError
            If there is none, or only the whole job, which is not labelled as a pipeline.
        """
        around = [listed for listed in self.listed if set(ends.ranks) <= set(listed.ranks)]
        smallest = min(around, key=lambda listed: len(listed.ranks), default=None)
        if smallest is None or (
            len(smallest.ranks) == self.job_ranks and not _PIPELINE.search(smallest.label)
        ):
            raise TraceError(
                f"messages between ranks ({some_ranks(ends.ranks)}): no group that is listed has "
                "both and not all ranks, so the partners of ranks that were not recorded are "
                "unknown; do not replicate"
            )
        return smallest

    def counterpart_of_message(self, group: Group, member: int, rank: int) -> Group:
        """Return sender and receiver at the same positions in the pipeline of ``rank``."""
        pipeline = self.pipeline(group)
        peer = self.counterpart(pipeline, member, rank)
        ends = tuple(peer.ranks[pipeline.ranks.index(end)] for end in group.ranks)
        return Group(ends, group.label)

    def model(
        self, rank: int, groups: Mapping[int, Sequence[Group]], stages: Sequence[Group]
    ) -> int:
        """Choose the recorded rank of which ``rank`` is a copy.

        ``groups`` are those of each recorded rank, ``stages`` those with messages between members:
        there, and in groups labelled as pipelines, the position must be equal. Among several the
        rank with most other positions in common is chosen, then the lowest.
        """
        best: tuple[int, int] | None = None
        for member, role_members in groups.items():
            copies = [(group, self.counterpart(group, member, rank)) for group in role_members]
            same = [copy.ranks.index(rank) == group.ranks.index(member) for group, copy in copies]
            must = [
                fits
                for group, fits in zip(role_members, same, strict=True)
                if _PIPELINE.search(group.label) or group in stages
            ]
            if all(must) and (best is None or sum(same) > -best[0]):
                best = (-sum(same), member)
        if best is None:
            raise TraceError(
                f"rank {rank} was not recorded, nor was any of its pipeline stage: record one rank "
                "of each stage, or do not replicate"
            )
        return best[1]


def _stride(ranks: tuple[int, ...]) -> int | None:
    """Distance between successive ascending ranks if it is constant, else None."""
    distances = {after - before for before, after in pairwise(ranks)}
    return distances.pop() if len(distances) == 1 and min(distances) > 0 else None


_ALL_TO_ALL = KINDS.index("all_to_all")
"""Kind of the calls whose size may differ from rank to rank."""


def replicate(workload: Workload, listed: Sequence[Group] = ()) -> Workload:
    """Give every rank of the job a program: each missing rank gets a copy of a recorded rank's.

    ``listed`` are groups of the job that are known besides those of the calls; ``notes`` of the
    result count the copies of each rank.

    Raises
    ------
    TraceError
        If the role of a missing rank or one of its groups is unknown, or if its copy's calls on a
        group would differ from the recorded ones.
    """
    present = workload.ranks
    missing = sorted(set(range(workload.job_ranks)) - set(present))
    if not missing:
        return workload
    if not present:
        raise TraceError("a workload without a rank: there is nothing to replicate")
    copies = models(workload, listed)
    table = _CallTable.of(workload)
    roles = Roles(workload.job_ranks, _known_groups(workload, listed))
    programs = {model: _program(workload, model) for model in sorted(set(copies.values()))}
    copied = []
    for rank in missing:
        program = programs[copies[rank]]
        joined = table.joined_by(program, copies[rank], rank, roles)
        copied.append(CopiedRank(rank, program, joined))
    replicated = with_copies(workload, copied, table.made, tuple(table.groups))
    return replace(replicated, notes=(*workload.notes, *_notes(copies)))


def models(
    workload: Workload, listed: Sequence[Group] = (), sample: frozenset[int] = frozenset()
) -> dict[int, int]:
    """Choose for each missing rank the recorded one whose program it runs.

    With a ``sample`` of ranks, only these count as recorded.
    """
    known_groups = _known_groups(workload, listed)
    recorded = workload.ranks
    if sample:
        recorded = tuple(sorted(sample))
        known_groups = tuple(group for group in known_groups if not sample.isdisjoint(group.ranks))
    roles = Roles(workload.job_ranks, known_groups)
    messages = np.unique(_groups_of_messages(workload)).tolist()
    pipelines = [roles.pipeline(ends) for ends in (workload.groups[number] for number in messages)]
    groups = {
        rank: [
            group
            for group in known_groups
            if rank in group.ranks and len(group.ranks) < workload.job_ranks
        ]
        for rank in recorded
    }
    missing = sorted(set(range(workload.job_ranks)) - set(recorded))
    return {rank: roles.model(rank, groups, pipelines) for rank in missing}


def _known_groups(workload: Workload, listed: Sequence[Group]) -> tuple[Group, ...]:
    """Collect the recorded groups of several ranks: listed ones, and those of calls."""
    messages = set(np.unique(_groups_of_messages(workload)).tolist())
    called = (group for index, group in enumerate(workload.groups) if index not in messages)
    every = dict.fromkeys((*listed, *called))
    # Both directions of a pair may be listed: they are one group.
    backward = {Group(group.ranks[::-1], group.label) for group in every if _stride(group.ranks)}
    return tuple(group for group in every if len(group.ranks) > 1 and group not in backward)


def _groups_of_messages(workload: Workload) -> Longs:
    calls = workload.calls
    return np.asarray(calls.group[calls.kind == SEND_RECEIVE], dtype=np.int64)


def _program(workload: Workload, rank: int) -> RankProgram:
    try:
        return RankProgram.of(workload, rank, np.flatnonzero(workload.rank == rank))
    except WorkloadError as error:
        raise TraceError(f"{error}: not replicated") from error


@dataclass(slots=True, eq=False)
class _CallTable:
    """Calls by group, in the order in which each group makes them; new groups are added.

    ``made_as`` maps a group to the recorded calls that its own calls are, or are copies of.
    """

    workload: Workload
    groups: dict[Group, int]
    of_group: dict[int, Longs]
    made_as: dict[int, Longs]
    made: list[MadeCalls] = field(default_factory=list)
    length: int = 0

    @staticmethod
    def of(workload: Workload) -> "_CallTable":
        """Make the table of the recorded calls."""
        groups = {group: index for index, group in enumerate(workload.groups)}
        order = np.argsort(workload.calls.group, kind="stable")
        group_order = workload.calls.group[order]
        # A stable sort by group keeps the order of a group's calls; split where the group changes.
        parts = np.split(order, np.flatnonzero(np.diff(group_order)) + 1) if len(order) else []
        of_group = {int(workload.calls.group[part[0]]): part for part in parts}
        return _CallTable(workload, groups, of_group, dict(of_group), length=len(workload.calls))

    def joined_by(self, part: RankProgram, model: int, rank: int, roles: Roles) -> Longs:
        """Return the calls that a copy of a model's program joins, op by op."""
        # By index of the model's call, the copy's call; the last entry is for ops without a call.
        joins = np.full(len(self.workload.calls) + 1, -1, dtype=np.int64)
        for index in part.groups:
            joins[self.of_group[index]] = self._counterpart(index, model, rank, roles)
        return joins[part.call]

    def _counterpart(self, index: int, model: int, rank: int, roles: Roles) -> Longs:
        group, calls = self.workload.groups[index], self.of_group[index]
        message = self.workload.calls.kind[calls] == SEND_RECEIVE
        if message.any():
            peers = roles.counterpart_of_message(group, model, rank)
        else:
            peers = roles.counterpart(group, model, rank)
        number = self.groups.setdefault(peers, len(self.groups))
        # The first copy that joins a new group makes its calls; later copies join those.
        if number not in self.of_group:
            self.of_group[number] = np.arange(self.length, self.length + len(calls))
            self.made_as[number] = calls
            self.length += len(calls)
            self.made.append(MadeCalls(calls, number))
        self._check(calls, self.made_as[number], (model, rank), peers)
        return self.of_group[number]

    def _check(
        self, model_calls: Longs, theirs: Longs, ranks: tuple[int, int], group: Group
    ) -> None:
        model, rank = ranks
        as_copy = f"rank {rank}, as a copy of rank {model}, would make"
        where = f"on group {group}"
        if len(model_calls) != len(theirs):
            raise TraceError(
                f"{as_copy} {len(model_calls)} calls {where}, where others make {len(theirs)}: "
                "their programs differ; record that rank, or do not replicate"
            )
        calls = self.workload.calls
        same = (calls.size[model_calls] == calls.size[theirs]) | (
            calls.kind[model_calls] == _ALL_TO_ALL
        )
        same |= np.isnan(calls.size[model_calls]) | np.isnan(calls.size[theirs])
        wrong = np.flatnonzero((calls.kind[model_calls] != calls.kind[theirs]) | ~same)
        if len(wrong):
            views = (self.workload.call_view(int(row[wrong[0]])) for row in (model_calls, theirs))
            raise TraceError(
                f"{as_copy} {next(views)} where {next(views)} is: their programs differ"
            )


def _notes(copies: Mapping[int, int]) -> list[str]:
    """Describe which ranks are copies of which; models with equally many copies are grouped."""
    copies_of: dict[int, list[int]] = defaultdict(list)
    for model, count in sorted(Counter(copies.values()).items()):
        copies_of[count].append(model)
    notes = []
    for count, ranks in sorted(copies_of.items()):
        shown = some_ranks(ranks)
        number = count * len(ranks)
        were = (
            "1 rank that was not recorded is a copy"
            if number == 1
            else (f"{number} ranks that were not recorded are copies")
        )
        each = f"of rank {shown}" if len(ranks) == 1 else f"of ranks {shown}, {count} of each"
        notes.append(f"{were} {each}")
    return notes


_EQUAL_WORK = 0.01
"""Ranks whose work differs by less than this share of the step count as equivalent: errors of
replays are larger."""
_SMALLEST_JOB = 16
"""Ranks of the smallest job for which advice is useful: fewer are read in seconds."""
_LARGEST_SAMPLE = 64
"""Ranks of the largest sample that is tried: all other ranks are compared with it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Ranks that suffice, and the largest difference of others' work as a share of the step."""

    ranks: tuple[int, ...]
    job_ranks: int
    off: float

    def sentence(self) -> str:
        """Return it as advice."""
        ranks = format_ranks(self.ranks)
        which = f"rank {ranks}" if len(self.ranks) == 1 else f"one of ranks {ranks}"
        return (
            f"each of the {self.job_ranks:,} ranks does the same as {which}, within"
            f" {100 * self.off:.2g} % of the step: --ranks {ranks} gives the same answers, with"
            " wider intervals, if calls take as long as modelled"
        )


def sample_of(workload: Workload, step: float) -> Sample | None:
    """Return the fewest first ranks of a job that represent all; None if there are none."""
    is_whole = workload.ranks == tuple(range(workload.job_ranks))
    if not is_whole or workload.job_ranks < _SMALLEST_JOB or not step > 0:
        return None
    work, programs = _work(workload), list(_programs(workload))
    size = 1
    while 2 * size <= workload.job_ranks and size <= _LARGEST_SAMPLE:
        ranks = frozenset(range(size))
        try:
            copies = models(workload, sample=ranks)
        except TraceError:  # the groups of these ranks do not determine the others' roles
            copies = {}
        if copies and all(programs[rank] == programs[model] for rank, model in copies.items()):
            difference = work[list(copies)] - work[list(copies.values())]
            off = float(np.abs(difference).max() / step)
            if off < _EQUAL_WORK:
                return Sample(tuple(sorted(ranks)), workload.job_ranks, off)
        size *= 2
    return None


def _work(workload: Workload) -> Floats:
    """Return each rank's time at each kind of op, and in lags after ops (s)."""
    ranks, kinds = workload.job_ranks, len(What)
    work = np.zeros((ranks, kinds + 1))
    row = workload.rank.astype(np.int64) * kinds + workload.part
    times = np.bincount(row, weights=workload.duration, minlength=ranks * kinds)
    work[:, :kinds] = times.reshape(ranks, kinds)
    sources = workload.rank[workload.edges.source]
    work[:, kinds] = np.bincount(sources, weights=workload.edges.lag, minlength=ranks)
    return work


def _programs(workload: Workload) -> Iterator[tuple[bytes, ...]]:
    """Yield the ops of each rank in order, with its calls, as comparable bytes."""
    order = np.argsort(workload.rank, kind="stable")
    bounds = np.searchsorted(workload.rank[order], np.arange(workload.job_ranks + 1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        ops = order[first:last]
        calls = workload.call[ops[workload.call[ops] >= 0]]
        columns = (workload.what[ops], workload.name[ops], workload.calls.kind[calls])
        yield (*(column.tobytes() for column in columns), workload.calls.size[calls].tobytes())
