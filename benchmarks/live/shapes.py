"""How large a program is, and in which order the ranks of a pipeline do their passes."""

from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
_LENGTH = {FORWARD: 1, BACKWARD: 2}
"""Of a pass, in units of a forward one, where passes are laid out in time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a program is.

    ``sleep`` (s) stands in for computing per layer forward, twice that backward; ``bucket_mib`` is
    of data parallelism's gradients, ``micro_batches`` of a pipeline, whose stages are cut into
    ``chunks``. ``layers`` are those of a chunk, else of the model.
    """

    ranks: int
    layers: int
    hidden: int
    batch: int
    sleep: float = 0.0
    bucket_mib: float = 4.0
    micro_batches: int = 4
    schedule: str = "gpipe"
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Unit:
    """A pass of a micro-batch through a chunk of the model; ``what`` is forward or backward.

    ``virtual`` numbers chunks through the model: of rank ``r`` it is ``chunk * ranks + r``.
    """

    what: str
    micro: int
    virtual: int


def units_of(shape: Shape, rank: int) -> list[Unit]:
    """Return the passes of a rank in the order of its schedule.

    ``gpipe`` has all forward first (Huang et al. 2019). ``1f1b`` keeps as few micro-batches under
    way as fill the pipeline (PipeDream-Flush, Narayanan et al. 2021), with several chunks a rank
    interleaved: passes are laid out in time, one unit forward and two backward, backward first.
    """
    ranks, last = shape.ranks, shape.ranks * shape.chunks - 1
    if shape.schedule == "gpipe":
        micros, own = range(shape.micro_batches), range(rank, last + 1, ranks)
        forward = [Unit(FORWARD, micro, virtual) for virtual in own for micro in micros]
        return forward + [Unit(BACKWARD, m, virtual) for virtual in reversed(own) for m in micros]
    done: dict[Unit, int] = {}
    order: list[list[Unit]] = [[] for _ in range(ranks)]
    free, time = [0] * ranks, 0
    while any(len(units) < 2 * shape.chunks * shape.micro_batches for units in order):
        for at in range(ranks):
            ready = [
                unit
                for unit in _left(shape, at, order[at])
                if all(done.get(before, time + 1) <= time for before in _before(unit, last))
            ]
            if free[at] > time or not ready:
                continue
            unit = ready[0]
            order[at].append(unit)
            free[at] = time + (_LENGTH[unit.what])
            done[unit] = free[at]
        time += 1
    return order[rank]


def _left(shape: Shape, rank: int, begun: list[Unit]) -> list[Unit]:
    """Return what a rank may do next, first what it does first: backward, then forward."""
    ranks, own = shape.ranks, range(rank, shape.ranks * shape.chunks, shape.ranks)
    micros = range(shape.micro_batches)
    backward = [Unit(BACKWARD, micro, virtual) for micro in micros for virtual in reversed(own)]
    forward = [Unit(FORWARD, micro, virtual) for micro in micros for virtual in own]
    # Interleaved: as many micro-batches as there are ranks go through a chunk before the next one.
    forward.sort(key=lambda unit: (unit.micro // ranks, unit.virtual, unit.micro))
    under_way = sum(1 if unit.what == FORWARD else -1 for unit in begun)
    most = ranks - rank if shape.chunks == 1 else 2 * (ranks - rank - 1) + own.step + 1
    may_begin = [unit for unit in forward if unit not in begun][:1] if under_way < most else []
    return [unit for unit in backward if unit not in begun] + may_begin


def _before(unit: Unit, last: int) -> list[Unit]:
    """Return what a pass needs: of the chunk before, or behind, and its own forward."""
    if unit.what == FORWARD:
        return [Unit(FORWARD, unit.micro, unit.virtual - 1)] if unit.virtual else []
    own = Unit(FORWARD, unit.micro, unit.virtual)
    return [own, Unit(BACKWARD, unit.micro, unit.virtual + 1)] if unit.virtual < last else [own]
