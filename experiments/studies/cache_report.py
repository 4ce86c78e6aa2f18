"""What is in the cache of studies' answers, and how much it may take."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.studies.cache import ENVIRONMENT, Usage, limit_of, open_cache
from simulator.errors import StudyError


class CacheAnswer(Head):
    """The cache: where, how many answers, bytes on disk and at most, and how many were removed."""

    folder: str
    answers: int
    bytes: int
    limit_bytes: float
    removed: int


@dataclass(frozen=True, slots=True)
class CacheRow:
    """The cache as a row."""

    folder: str
    answers: int
    bytes: int
    limit_bytes: float
    removed: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CacheReport(Report):
    """What is in the cache; ``removed`` is how many answers were thrown out just now."""

    schema: ClassVar[str] = "twofold/cache/1"
    printed_by: ClassVar[str] = "experiments.output.tables.studies:print_cache"

    usage: Usage
    removed: int = 0

    def answer(self) -> CacheAnswer:
        """Return the JSON answer."""
        row = self._row()
        return {
            **self.head(),
            "folder": row.folder,
            "answers": row.answers,
            "bytes": row.bytes,
            "limit_bytes": row.limit_bytes,
            "removed": row.removed,
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        return f"{self.usage.entries:,} answers in {self.usage.folder}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return CacheRow, (self._row(),)

    def _row(self) -> CacheRow:
        usage = self.usage
        return CacheRow(str(usage.folder), usage.entries, usage.bytes, usage.limit, self.removed)


@question("cache")
def cache(*, limit: str | None = None, clear: bool = False) -> CacheReport:
    """Say what is in the cache of studies' answers; limit it, or empty it.

    Parameters
    ----------
    limit
        How many bytes it may take from now on: ``2 GB``. What was not asked for longest goes.
    clear
        Whether to throw out all answers.

    Returns
    -------
    CacheReport
        Where it is, what is in it, and how many answers were removed.

    Raises
    ------
    StudyError
        If there is to be no cache.
    TwofoldError
        If it cannot be used, or the limit is none.
    """
    opened = open_cache()
    if opened is None:
        raise StudyError(f"{ENVIRONMENT} is empty, so there is no cache: name a directory in it")
    with opened as kept:
        removed = kept.trim(limit_of(limit)) if limit is not None else 0
        removed += kept.trim(0.0) if clear else 0
        return CacheReport(kept.usage(), removed)
