"""Which part a rank plays in a job: its place in the groups of every family.

Groups that divide a job in the same way are a family: all tensor-parallel groups, all data-parallel
ones. The files of some ranks name the groups of those; those of the others follow from the lists,
or from the pattern where it is regular: ranks that are ``stride`` apart, in blocks that fill the
job. Anything else is refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.errors import TraceError
from simulator.workload import Group
from traces.core.events import RankTrace

_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe|pipeline)", re.IGNORECASE)
_NAMELESS = ("", "undefined")
"""Labels of groups that the program gave none; the second is PyTorch's word for it."""


def listed_groups(ranks: Iterable[RankTrace]) -> tuple[Group, ...]:
    """Collect the groups that the traces list with all their ranks."""
    groups = (
        Group(group.ranks, group.label)
        for trace in ranks
        for group in trace.groups.values()
        if group.ranks is not None and len(set(group.ranks)) == len(group.ranks)
    )
    return tuple(dict.fromkeys(groups))


@dataclass(frozen=True, slots=True)
class Roles:
    """Places of ranks in the families of a job; ``listed`` are the groups that are told."""

    job_ranks: int
    listed: tuple[Group, ...]

    def counterpart(self, group: Group, member: int, rank: int) -> Group:
        """Find the group of the same family as one of ``member`` to which ``rank`` belongs.

        Raises
        ------
        TraceError
            If nothing tells it.
        """
        if len(group.ranks) == 1 and group.ranks == (member,):
            return Group((rank,), group.label)
        if rank in group.ranks:
            return group
        stride = _stride(group.ranks)
        fitting = {
            listed.ranks
            for listed in self.listed
            if self._akin(listed, group, stride) and rank in listed.ranks
        }
        if len(fitting) == 1:
            return Group(fitting.pop(), group.label)
        if not fitting and stride is not None:
            return self._next_block(group, stride, rank)
        why = (
            "several of the groups that are listed fit" if fitting else "its ranks make no pattern"
        )
        raise TraceError(
            f"rank {rank} was not recorded, and its counterpart of group {group.label or 'group'} "
            f"{_shown(group.ranks)} of rank {member} is not told: {why}; record rank {rank}, or do "
            "not replicate"
        )

    def _akin(self, listed: Group, group: Group, stride: int | None) -> bool:
        """Whether two groups are of one family: by label, or by pattern where they have none."""
        if listed.label != group.label or len(listed.ranks) != len(group.ranks):
            return False
        return group.label not in _NAMELESS or _stride(listed.ranks) == stride

    def _next_block(self, group: Group, stride: int, rank: int) -> Group:
        size = len(group.ranks)
        block = stride * size
        first = rank - rank // stride % size * stride
        ranks = tuple(range(first, first + block, stride))
        where = f"group {group.label or 'group'} {_shown(group.ranks)}"
        if self.job_ranks % block or group.ranks[0] // stride % size:
            raise TraceError(
                f"rank {rank} was not recorded, and its counterpart of {where} is not told: blocks "
                f"of {size} ranks, {stride} apart, do not fill a job of {self.job_ranks} ranks"
            )
        for listed in self.listed:
            same = listed.label == group.label and group.label not in _NAMELESS
            shared = set(listed.ranks) & set(ranks)
            if same and shared and set(listed.ranks) != set(ranks):
                raise TraceError(
                    f"rank {rank} was not recorded, and its counterpart of {where} is not told: "
                    f"the pattern gives {_shown(ranks)}, but {_shown(listed.ranks)} is listed"
                )
        return Group(ranks, group.label)

    def pipeline(self, ends: Group) -> Group:
        """Find the smallest group to which both ends of a message belong.

        Raises
        ------
        TraceError
            If there is none, or none but the whole job, and that is not called a pipeline.
        """
        around = [listed for listed in self.listed if set(ends.ranks) <= set(listed.ranks)]
        smallest = min(around, key=lambda listed: len(listed.ranks), default=None)
        if smallest is None or (
            len(smallest.ranks) == self.job_ranks and not _PIPELINE.search(smallest.label)
        ):
            raise TraceError(
                f"messages between ranks {_shown(ends.ranks)}: no group that is listed has both "
                "and not all ranks, so nobody tells with whom the ranks exchange them that were "
                "not recorded; do not replicate"
            )
        return smallest

    def counterpart_of_message(self, group: Group, member: int, rank: int) -> Group:
        """Find the sender and receiver that have the places in the pipeline of ``rank``."""
        pipeline = self.pipeline(group)
        other = self.counterpart(pipeline, member, rank)
        ends = tuple(other.ranks[pipeline.ranks.index(end)] for end in group.ranks)
        return Group(ends, group.label)

    def model(
        self, rank: int, groups: Mapping[int, Sequence[Group]], stages: Sequence[Group]
    ) -> int:
        """Choose the recorded rank of which ``rank`` is a copy.

        ``groups`` are those of each recorded rank, ``stages`` those with messages between members:
        there, and in groups labelled as pipelines, the place must be the same. Of several the one
        that has most other places in common, then the lowest.
        """
        best: tuple[int, int] | None = None
        for member, own in groups.items():
            same = [self._same_place(group, member, rank) for group in own]
            must = [
                fits
                for group, fits in zip(own, same, strict=True)
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

    def _same_place(self, group: Group, member: int, rank: int) -> bool:
        other = self.counterpart(group, member, rank)
        return other.ranks.index(rank) == group.ranks.index(member)


def _stride(ranks: tuple[int, ...]) -> int | None:
    """How far apart ascending ranks are, if all are alike; None otherwise."""
    apart = {after - before for before, after in pairwise(ranks)}
    return apart.pop() if len(apart) == 1 and min(apart) > 0 else None


def _shown(ranks: Sequence[int]) -> str:
    head = ", ".join(str(rank) for rank in ranks[:6])
    return f"({head}, ... {len(ranks)} in all)" if len(ranks) > 6 else f"({head})"
