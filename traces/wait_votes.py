"""What the measured times of like waits say together, where one wait's own say nothing."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Site = tuple[int | None, int]
"""What waits have in common: the stream of the collective they follow, the stream that waits."""

Source = tuple[str, int, int]
"""A kind of collective, the stream of the compute launched before, the stream of the collective."""


@dataclass(slots=True)
class Votes:
    """What was seen at each site: collected along all waits of a step, then ``closed`` and asked.

    A program runs the same code for each layer, so like waits are for alike: for the collective
    launched last to some stream (to be waited for at once), or for the oldest there that nobody
    waited for (prefetched). A start that comes before a stream's newest ended refutes the first.

    ``explained`` counts, per stream and whether it was the newest there, starts that came just as a
    collective ended; ``behind`` the collectives that began just as the one launched before them
    ended, ``not_behind`` those that began earlier; ``after`` and ``not_after``
    count the same for compute.
    """

    closed: bool = False
    explained: Counter[tuple[Site, int, bool]] = field(default_factory=Counter)
    refuted: Counter[tuple[Site, int]] = field(default_factory=Counter)
    behind: Counter[Site] = field(default_factory=Counter)
    not_behind: Counter[Site] = field(default_factory=Counter)

    after: Counter[Source] = field(default_factory=Counter)
    not_after: Counter[Source] = field(default_factory=Counter)

    def stream(self, site: Site, streams: Iterable[int]) -> int | None:
        """Choose among streams: most starts explained, newest never refuted, the one followed.

        A wait that follows no collective is for none of them in particular, unless times say so.
        """

        def rank(one: int) -> tuple[int, bool, bool, int]:
            refuted = self.refuted[site, one] > 0
            return -self._fitting(site, one), refuted, one != site[0], one

        known = [one for one in streams if site[0] is not None or self._fitting(site, one)]
        return min(known, key=rank, default=None)

    def takes_newest(self, site: Site, stream: int) -> bool:
        """Whether such a wait is for the newest collective of a stream, not for the oldest."""
        return site[0] is not None and not self.refuted[site, stream]

    def is_behind(self, site: Site) -> bool:
        """Whether a collective waits for the one launched before, not for compute."""
        return self.closed and self.behind[site] > 0 and not self.not_behind[site]

    def is_after(self, source: Source) -> bool:
        """Whether a collective waits for compute: one launched from a side stream never began so.

        One that did now and then was launched while another thread launched compute.
        """
        return self.after[source] > 0 or not self.not_after[source]

    def _fitting(self, site: Site, stream: int) -> int:
        """Count the starts explained that are not of another kind than the waits unexplained."""
        newest = 0 if self.refuted[site, stream] else self.explained[site, stream, True]
        return newest + self.explained[site, stream, False]
