"""Imbalance of ranks or experts as a user writes it: a factor, Zipf's law, or a file.

``1.5``
    the busiest rank receives 1.5 times the mean, the others share the rest equally;
``zipf:1.2``
    the k-th most popular receives in proportion to ``1 / k^1.2`` (Zipf's law);
``FILE``
    a CSV file. Numbers alone are a matrix: bytes from the sender of each row to the receiver of
    each column. With the column names ``expert`` and ``tokens``, and ``layer`` if there are
    several, it is a histogram of a router's choices; ``FILE:LAYER`` names one layer of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulator.shares import Shares, of_bytes
from simulator.support.arrays import Floats
from simulator.support.errors import WorkloadError, shown
from simulator.support.input_files import csv_rows, read_text
from simulator.support.quantities import count_of, number_of

_FORMS = (
    "write a factor (busiest over mean) such as 1.5, zipf:1.2, or a CSV file: a matrix of bytes, "
    "or a histogram with the columns expert and tokens"
)
_ZIPF = "zipf:"
_LARGEST_FILE = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class Imbalance:
    """An imbalance as written, and its meaning: one of the four below is set.

    Parameters
    ----------
    text
        As it was written.
    factor
        Busiest rank over the mean.
    exponent
        Of Zipf's law.
    matrix
        Bytes of every pair, senders in rows, shape ``(n, n)`` (B).
    histogram
        Tokens of each expert, by layer; under None if the file does not name layers.
    layer
        The one layer of the histogram that is used.
    """

    text: str
    factor: float | None = None
    exponent: float | None = None
    matrix: Floats | None = None
    histogram: Mapping[int | None, Floats] = field(default_factory=dict)
    layer: int | None = None

    def __str__(self) -> str:
        """As it was written."""
        return self.text

    @property
    def varies(self) -> bool:
        """Whether layers differ in the shares of their experts."""
        return self.exponent is not None or any(layer is not None for layer in self.histogram)

    @property
    def content(self) -> tuple[object, ...]:
        """What it says, as a key: the text, and what is in its file."""
        rows = sorted(self.histogram.items(), key=lambda row: -1 if row[0] is None else row[0])
        return (self.text, *((layer, tokens.tobytes()) for layer, tokens in rows))

    def popularity(self, ranks: int, choices: int, layer: int) -> Floats:
        """Share of all tokens that each rank receives in a layer, shape ``(ranks,)``; sum 1.

        ``choices`` experts lie on the ranks in order, as many on each. Under Zipf's law nobody
        knows which is the most popular: the order is drawn anew for each layer, alike at each call.

        Raises
        ------
        WorkloadError
            If the factor is more than the number of ranks, or the histogram does not have the
            layer, has more experts, or no tokens.

        Examples
        --------
        >>> parse_imbalance("1.5").popularity(4, 8, layer=0).tolist()
        [0.375, 0.20833333333333334, 0.20833333333333334, 0.20833333333333334]
        """
        if self.factor is not None:
            return _one_hot(self.factor, ranks, self.text)
        shares: Floats = self.of_experts(choices, layer).reshape(ranks, -1).sum(axis=1)
        return shares

    def of_experts(self, experts: int, layer: int) -> Floats:
        """Share of all tokens that each expert receives in a layer, shape ``(experts,)``; sum 1."""
        if self.exponent is not None:
            order = np.random.default_rng(layer).permutation(experts)
            drawn: Floats = zipf(experts, self.exponent)[order]
            return drawn
        if not self.histogram:
            raise WorkloadError(f"imbalance {self.text}: is for ranks, not for experts")
        tokens = self.tokens(layer)
        if len(tokens) > experts:
            raise WorkloadError(
                f"{self.text}: expert {len(tokens) - 1}, but the model has {experts} experts "
                "(0 is the first)"
            )
        padded = np.concatenate([tokens, np.zeros(experts - len(tokens))])
        shares: Floats = padded / padded.sum()
        return shares

    def tokens(self, layer: int | None) -> Floats:
        """Tokens of each expert that the histogram has for a layer."""
        histogram = self.histogram.get(None, self.histogram.get(layer))
        if histogram is None:
            layers = ", ".join(
                map(str, sorted(layer for layer in self.histogram if layer is not None))
            )
            raise WorkloadError(
                f"{self.text}: layer: no rows of layer {layer}, which has experts (0 is the first "
                f"of the model); it has {layers if len(layers) < 60 else layers[:60] + ' ...'}"
            )
        if not histogram.any():
            raise WorkloadError(f"{self.text}: tokens: layer {layer} has none")
        return histogram

    def of_ranks(self, ranks: int) -> tuple[float | None, Shares | None]:
        """Return the shares of an all-to-all of ``ranks``, and its size S if a matrix gives it (B).

        Under a histogram all senders choose alike, and experts are placed on the ranks in order.
        Under Zipf's law rank 0 receives the most.
        """
        if self.matrix is not None:
            if len(self.matrix) != ranks:
                raise WorkloadError(
                    f"{self.text}: a matrix of {len(self.matrix)} ranks, but {ranks} take part"
                )
            return of_bytes(self.matrix)
        if self.exponent is not None:
            popular = zipf(ranks, self.exponent)
        elif self.factor is not None:
            popular = _one_hot(self.factor, ranks, self.text)
        else:
            several = sorted(number for number in self.histogram if number is not None)
            if len(several) > 1 and self.layer is None:
                which = f"say which, such as {self.text}:{several[0]}"
                raise WorkloadError(f"{self.text}: {len(several)} layers: {which}")
            tokens = self.tokens(next(iter(several), None) if self.layer is None else self.layer)
            if len(tokens) % ranks:
                raise WorkloadError(
                    f"{self.text}: {len(tokens)} experts do not lie evenly on {ranks} ranks"
                )
            popular = tokens.reshape(ranks, -1).sum(axis=1) / tokens.sum()
        return None, of_bytes(np.tile(popular, (ranks, 1)))[1]


def zipf(count: int, exponent: float) -> Floats:
    """Shares in proportion to ``1 / k^exponent``, the largest first (Zipf's law).

    Examples
    --------
    >>> zipf(2, 1.0).tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    weight = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: Floats = weight / weight.sum()
    return shares


def parse_imbalance(text: str) -> Imbalance:
    """Read how unevenly ranks are asked.

    Raises
    ------
    WorkloadError
        If it is none of the forms, or the file cannot be read as one.

    Examples
    --------
    >>> parse_imbalance("zipf:1.2").exponent, parse_imbalance("3").factor
    (1.2, 3.0)
    """
    spec = text.strip()
    if spec.lower().startswith(_ZIPF):
        exponent = number_of(spec[len(_ZIPF) :])
        if not 0 <= exponent < math.inf:
            raise WorkloadError(f"imbalance {shown(text)}: {_ZIPF} needs an exponent of 0 or more")
        return Imbalance(spec, exponent=exponent)
    factor = number_of(spec)
    if not math.isnan(factor):
        if not 1 <= factor < math.inf:
            raise WorkloadError(
                f"imbalance {shown(text)}: the busiest rank over the mean must be 1 or more"
            )
        return Imbalance(spec, factor=factor)
    return _file(spec)


def _one_hot(factor: float, ranks: int, text: str) -> Floats:
    if factor > ranks:
        raise WorkloadError(
            f"imbalance {text}: the busiest of {ranks} ranks receives {ranks} times the mean at "
            "most"
        )
    rest = (ranks - factor) / (ranks - 1) if ranks > 1 else 1.0
    shares = np.full(ranks, rest / ranks)
    shares[0] = factor / ranks
    return shares


def _file(text: str) -> Imbalance:
    path, layer = Path(text), None
    before, colon, after = text.rpartition(":")
    if colon and count_of(after) is not None and not path.exists():
        path, layer = Path(before), count_of(after)
    if not path.is_file():
        raise WorkloadError(f"imbalance {shown(text)}: no such file; {_FORMS}")
    rows = _rows(path)
    if any(math.isnan(number_of(cell)) for cell in rows[0][1]):
        histogram = _histogram(rows, path)
        if layer is not None and layer not in histogram:
            raise WorkloadError(f"{path}: layer: there is no layer {layer}")
        return Imbalance(str(path), histogram=histogram, layer=layer)
    if layer is not None:
        raise WorkloadError(f"{text}: a matrix has no layers")
    return Imbalance(str(path), matrix=_matrix(rows, path))


_Rows = Sequence[tuple[int, Sequence[str]]]
"""Cells of lines, each with its number."""


def _rows(path: Path) -> _Rows:
    text = read_text(path, WorkloadError, "as a table", most=_LARGEST_FILE)
    lines = [
        (at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()[:1] not in "#"
    ]
    cells = csv_rows((line for _, line in lines), path, WorkloadError)
    rows = [
        (at, [cell.strip() for cell in row])
        for (at, _), (_, row) in zip(lines, cells, strict=False)
    ]
    if not rows:
        raise WorkloadError(f"{path}: is empty; {_FORMS}")
    return rows


def _matrix(rows: _Rows, path: Path) -> Floats:
    table = np.zeros((len(rows), len(rows)))
    for number, (at, cells) in enumerate(rows):
        if len(cells) != len(rows):
            raise WorkloadError(
                f"{path}, line {at}: {len(cells)} columns of a matrix of {len(rows)} rows: it has "
                "a row and a column for every rank"
            )
        for column, cell in enumerate(cells):
            table[number, column] = _amount(cell, f"{path}, line {at}, column {column + 1}")
    if not table.any():
        raise WorkloadError(f"{path}: every entry is 0")
    return table


def _histogram(rows: _Rows, path: Path) -> Mapping[int | None, Floats]:
    names = [name.lower() for name in rows[0][1]]
    for needed in ("expert", "tokens"):
        if needed not in names:
            has = shown(", ".join(names))
            raise WorkloadError(
                f"{path}, line {rows[0][0]}: no column {needed}: it has {has}; {_FORMS}"
            )
    counts: dict[int | None, dict[int, float]] = {}
    for at, cells in rows[1:]:
        if len(cells) != len(names):
            raise WorkloadError(f"{path}, line {at}: {len(cells)} of {len(names)} columns")
        row = dict(zip(names, cells, strict=True))
        expert = _whole(row["expert"], f"{path}, line {at}: expert")
        layer = _whole(row["layer"], f"{path}, line {at}: layer") if "layer" in row else None
        layer_counts = counts.setdefault(layer, {})
        if expert in layer_counts:
            where = "" if layer is None else f" of layer {layer}"
            raise WorkloadError(f"{path}, line {at}: expert {expert}{where} appears twice")
        layer_counts[expert] = _amount(row["tokens"], f"{path}, line {at}: tokens")
    if not counts:
        raise WorkloadError(f"{path}: the histogram has no rows; it needs one per expert")
    experts = 1 + max(max(layer_counts) for layer_counts in counts.values())
    return {
        layer: np.array([layer_counts.get(expert, 0.0) for expert in range(experts)])
        for layer, layer_counts in counts.items()
    }


_MOST = 1 << 20
"""Experts and layers of the largest histogram; a higher number is a mistake."""


def _whole(cell: str, where: str) -> int:
    number = count_of(cell)
    if number is None or number >= _MOST:
        raise WorkloadError(f"{where}: {shown(cell)} is not a whole number of 0 or more")
    return number


def _amount(cell: str, where: str) -> float:
    value = number_of(cell)
    if not value >= 0:
        raise WorkloadError(f"{where}: {shown(cell)} is not an amount")
    return value
