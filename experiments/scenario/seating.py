"""Which seats of a cluster the ranks of several jobs take.

Seats are numbered node by node: seat ``s`` is slot ``s % slots`` of node ``s // slots``. A job's
ranks take its seats in ascending order, as launchers number ranks host by host, unless a file says
otherwise.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.support.errors import ClusterError, SettingsError, shown
from simulator.support.input_files import csv_rows, read_text
from simulator.support.names import one_of, same_name
from simulator.support.yaml_text import parse_yaml
from topologies import Cluster
from topologies.cluster.schema import kinds_of

Seats = NDArray[np.int64]
Sizes = Mapping[str, int]
"""Number of ranks of each job by name, in the order of the jobs."""

PACKED, STRIPED, RANDOM = "packed", "striped", "random"
_FILES = (".csv", ".yaml", ".yml", ".json")
_COLUMNS = ("job", "rank", "seat")


@dataclass(frozen=True, slots=True, eq=False)
class Seating:
    """Where jobs sit.

    There are ``slots`` seats on each of ``nodes``. ``seats`` has that of each rank of each job, by
    the job's name, shape ``(ranks of the job,)``. ``placement`` is how they were chosen:
    ``packed``, ``striped``, ``random`` or a file.
    """

    nodes: int
    slots: int
    seats: Mapping[str, Seats]
    placement: str

    @property
    def ranks(self) -> int:
        """Seats on all nodes."""
        return self.nodes * self.slots


def seated(
    jobs: Sizes,
    cluster: Cluster,
    placement: str = PACKED,
    *,
    nodes: int | None = None,
    seed: int = 0,
) -> Seating:
    """Seat jobs on a cluster.

    Parameters
    ----------
    jobs
        Ranks of each, by name, in order.
    cluster
        The machine.
    placement
        ``packed``: job after job, each on the first node that has room for all of it, or on whole
        nodes in order; where these do not suffice, on whatever is free, in order. ``striped``: the
        seats of every node are dealt to the jobs in turn, in proportion to their sizes. ``random``:
        seats are drawn. Or a file: CSV with the columns ``job,rank,seat``, or YAML that gives each
        job's seats as a list or as text, ``a: 0-7,16``.
    nodes
        Nodes to place on, the first of the cluster; as few as hold all ranks if not given. A file
        names its seats itself.
    seed
        Of ``random``.

    Raises
    ------
    ClusterError
        If there are not as many seats as ranks, nodes have unlike slots, or the file seats a
        rank twice, not at all, or where another sits.
    SettingsError
        If the placement is none of these, or the file cannot be read.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> machine = load_cluster("dgx-a100")
    >>> seated({"a": 4, "b": 8}, machine).seats["b"].tolist()
    [8, 9, 10, 11, 12, 13, 14, 15]
    >>> seated({"a": 4, "b": 8}, machine, "striped").seats["a"].tolist()
    [1, 4, 9, 12]
    """
    name = same_name(placement, _PLACEMENTS)
    if name is None:
        path = Path(placement)
        if path.suffix.lower() not in _FILES:
            choices = one_of(placement, PLACEMENTS)
            raise SettingsError(f"placement {choices}, nor a file that ends in {', '.join(_FILES)}")
        text = read_text(path, SettingsError, "as a placement")
        is_csv = path.suffix.lower() == ".csv"
        rows = list(_csv_rows(text, path) if is_csv else _yaml_rows(text, path))
        return _on_nodes_of_one_size(Seating(*_checked(rows, jobs, cluster), str(path)), cluster)
    slots, ranks = cluster.ranks_per_node, sum(jobs.values())
    # Whole nodes per job may need one node more than all ranks together.
    count = nodes or (_packed_nodes(jobs, slots, cluster.nodes) if name == PACKED else 0)
    count = count or -(-ranks // slots)
    if count > cluster.nodes:
        limit = f"{cluster.name} has {cluster.nodes} nodes of {slots}"
        if nodes is not None:
            raise ClusterError(f"{nodes} nodes were requested, but {limit}")
        count = cluster.nodes
    _check_room(jobs, count, slots, cluster.name)
    seats = _PLACEMENTS[name](jobs, count, slots, seed)
    return _on_nodes_of_one_size(Seating(count, slots, seats, name), cluster)


def _on_nodes_of_one_size(seating: Seating, cluster: Cluster) -> Seating:
    """Refuse nodes with other numbers of slots than the first: seats are numbered alike on all."""
    same_size = 0
    for kind in kinds_of(cluster).values():
        if kind.ranks_per_node != seating.slots:
            break
        same_size += kind.nodes
    if seating.nodes > same_size:
        raise ClusterError(
            f"{cluster.name}: jobs that share sit on nodes of one size, and only its first"
            f" {same_size} nodes have {seating.slots} slots, not all {seating.nodes} asked for"
        )
    return seating


def _check_room(jobs: Sizes, nodes: int, slots: int, where: str) -> None:
    """Refuse the first job for which too few seats are left."""
    free = nodes * slots
    for name, ranks in jobs.items():
        if ranks > free:
            neighbours = [job for job in jobs if job != name][:_NAMED]
            others = f" beside {', '.join(neighbours)}" if free < nodes * slots else ""
            raise ClusterError(
                f"job {name} does not fit{others}: it needs {ranks} ranks, but only {free} of"
                f" {nodes * slots} are free ({where}: {nodes} node{'s' * (nodes != 1)} of {slots})"
            )
        free -= ranks


_NAMED = 3
"""Most jobs that a message names."""


def _packed_nodes(jobs: Sizes, slots: int, most: int) -> int:
    """Return the number of nodes with which no job shares a node unnecessarily."""
    free: list[int] = []
    for ranks in jobs.values():
        fits = [node for node, left in enumerate(free) if left >= ranks]
        if ranks <= slots and fits:
            free[fits[0]] -= ranks
        else:
            whole, rest = divmod(ranks, slots)
            free += [0] * whole + [slots - rest] * (rest > 0)
    return min(len(free), most)


def _packed(jobs: Sizes, nodes: int, slots: int, _: int) -> dict[str, Seats]:
    free = np.ones((nodes, slots), dtype=bool)
    seats_of: dict[str, Seats] = {}
    for name, ranks in jobs.items():
        left = free.sum(axis=1)
        room = (
            np.flatnonzero(left >= ranks)[:1] if ranks <= slots else np.flatnonzero(left == slots)
        )
        if left[room].sum() < ranks:
            room = np.flatnonzero(left)
        chosen = np.zeros_like(free)
        chosen[room] = free[room]
        seats_of[name] = np.flatnonzero(chosen)[:ranks]
        free.flat[seats_of[name]] = False
    return seats_of


def _striped(jobs: Sizes, nodes: int, slots: int, _: int) -> dict[str, Seats]:
    """Deal seats to the job that is furthest behind its share, the first of several."""
    names, sizes = list(jobs), np.array(list(jobs.values()))
    total = int(sizes.sum())
    used = -(-total // nodes)
    order = [node * slots + slot for node in range(nodes) for slot in range(min(used, slots))]
    dealt = np.zeros(len(sizes), dtype=np.int64)
    seats_of: dict[str, list[int]] = {name: [] for name in names}
    for turn, seat in enumerate(order[:total], start=1):
        behind = np.where(dealt < sizes, sizes * turn - dealt * total, -total * total)
        job = int(np.argmax(behind))
        dealt[job] += 1
        seats_of[names[job]].append(seat)
    return {name: np.array(seats, dtype=np.int64) for name, seats in seats_of.items()}


def _random(jobs: Sizes, nodes: int, slots: int, seed: int) -> dict[str, Seats]:
    drawn = np.random.default_rng(seed).permutation(nodes * slots)
    ends = np.cumsum(list(jobs.values()))
    parts = np.split(drawn[: ends[-1]], ends[:-1])
    return {name: np.sort(part) for name, part in zip(jobs, parts, strict=True)}


_Place = Callable[[Sizes, int, int, int], dict[str, Seats]]
_PLACEMENTS: dict[str, _Place] = {PACKED: _packed, STRIPED: _striped, RANDOM: _random}
PLACEMENTS = tuple(_PLACEMENTS)
"""Names of placements; any other text is a file."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A rank's seat, and its position in the file."""

    job: str
    rank: int
    seat: int
    where: str


def _csv_rows(text: str, path: Path) -> Iterator[_Row]:
    lines = csv_rows(text.splitlines(keepends=True), path, SettingsError)
    head = [name.strip().lower() for name in next(lines, (1, []))[1]]
    if sorted(head) != sorted(_COLUMNS):
        raise SettingsError(
            f"{path}: line 1: the columns are {','.join(head) or 'missing'}; write"
            f" {','.join(_COLUMNS)}"
        )
    for line, cells in lines:
        where = f"{path}: line {line}"
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(head):
            raise SettingsError(f"{where}: {len(cells)} cells, but there are {len(head)} columns")
        row = dict(zip(head, (cell.strip() for cell in cells), strict=True))
        rank, seat = (_number(row[name], name, where) for name in ("rank", "seat"))
        yield _Row(row["job"], rank, seat, where)


def _yaml_rows(text: str, path: Path) -> Iterator[_Row]:
    value = parse_yaml(text, path, SettingsError)
    if not isinstance(value, dict):
        raise SettingsError(f"{path}: a placement gives each job its seats, as in 'a: 0-7,16'")
    for job, seats in value.items():
        where = f"{path}: job {job}"
        for rank, seat in enumerate(_listed(seats, where)):
            yield _Row(str(job), rank, seat, f"{where}: rank {rank}")


def _listed(seats: object, where: str) -> Iterator[int]:
    """Yield the seats of a list, or of text such as ``0-7,16``."""
    for part in seats if isinstance(seats, list) else str(seats).split(","):
        text = str(part).strip()
        ends = re.fullmatch(r"(\d{1,9})\s*-\s*(\d{1,9})", text)
        if ends is None:
            yield _number(text, "seat", where)
            continue
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise SettingsError(f"{where}: {text} ends before it begins")
        yield from range(first, last + 1)


def _number(text: str, field: str, where: str) -> int:
    if re.fullmatch(r"\d{1,9}", text) is None:
        raise SettingsError(f"{where}: {field} {shown(text)} is not a whole number of 0 or more")
    return int(text)


def _checked(
    rows: Sequence[_Row], jobs: Sizes, cluster: Cluster
) -> tuple[int, int, Mapping[str, Seats]]:
    """Refuse all but one distinct seat for each rank; return the number of nodes."""
    row_at: dict[int, _Row] = {}
    seat_of: dict[str, dict[int, int]] = {name: {} for name in jobs}
    for row in rows:
        if row.job not in jobs:
            raise ClusterError(f"{row.where}: job {one_of(row.job, jobs)}")
        if row.rank >= jobs[row.job]:
            limit = f"ranks 0 to {jobs[row.job] - 1}"
            raise ClusterError(f"{row.where}: rank {row.rank}: job {row.job} has {limit}")
        if row.seat >= cluster.capacity:
            limit = f"seats 0 to {cluster.capacity - 1}"
            raise ClusterError(f"{row.where}: seat {row.seat}: {cluster.name} has {limit}")
        if row.rank in seat_of[row.job]:
            raise ClusterError(f"{row.where}: rank {row.rank} of job {row.job} is seated twice")
        if (earlier := row_at.setdefault(row.seat, row)) is not row:
            sits = f"rank {earlier.rank} of job {earlier.job}"
            raise ClusterError(f"{row.where}: seat {row.seat} is taken by {sits}")
        seat_of[row.job][row.rank] = row.seat
    for name, ranks in jobs.items():
        if missing := [rank for rank in range(ranks) if rank not in seat_of[name]]:
            file = rows[0].where.split(": ")[0] if rows else "the placement"
            some = ", ".join(map(str, missing[:_NAMED])) + ", …" * (len(missing) > _NAMED)
            noun = "rank" if len(missing) == 1 else "ranks"
            raise ClusterError(f"{file}: job {name}: no seat for {noun} {some}")
    slots = cluster.ranks_per_node
    seats = {
        name: np.array([seat_of[name][rank] for rank in range(ranks)], dtype=np.int64)
        for name, ranks in jobs.items()
    }
    return max(row_at, default=0) // slots + 1, slots, seats
