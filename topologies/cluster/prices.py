"""Prices and power of a cluster's parts: the fields of its file, and usual figures.

A cluster file may give better figures, line by line. All others are taken from
``topologies/prices.yaml``, each with a source and a spread; those of the network are proportional
to the bandwidth of a cable. An accelerator without a public price has none: the cluster file must
give it before a total can be computed.
"""

from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Self

from msgspec import Struct
from pydantic import Field, model_validator

from simulator.accelerators import named
from simulator.support.errors import ClusterError
from simulator.support.quantities import EnergyPriceText, MoneyText, WattsText
from simulator.support.yaml_text import parse_yaml
from topologies.cluster.fabrics import Bandwidth, ClusterPart, text_like, with_unit, within

Money = Annotated[MoneyText, within("USD", 0.0, 1e9), with_unit("USD"), text_like("30 kUSD")]
Watts = Annotated[WattsText, within("W", 0.0, 1e6), with_unit("W"), text_like("700 W")]
EnergyPrice = Annotated[
    EnergyPriceText, within("USD/J", 0.0, 10 / 3.6e6), with_unit("USD/J"), text_like("0.08 USD/kWh")
]
Spread = Annotated[float, Field(ge=0, le=1, strict=True)]
Ports = Annotated[int, Field(ge=4, multiple_of=2, strict=True)]
Overhead = Annotated[float, Field(ge=1, le=10, strict=True)]

PARTS = ("accelerator", "node", "nic", "switch_port", "cable")
"""Parts that are bought by the piece. ``node`` is all of a node except its accelerators and NICs,
the scale-up fabric included; ``cable`` includes the transceivers at both its ends."""
NETWORK_PARTS = PARTS[2:]
"""Parts of the fabric between nodes, whose usual figures scale with a cable's bandwidth."""
YOURS = "the cluster file"
"""The source of figures that a cluster file gives without a source."""


def _with_text(data: Any, *names: str) -> Any:
    """Expand text alone to the table with these fields."""
    return dict.fromkeys(names, data) if isinstance(data, str | float | int) else data


class Price(ClusterPart):
    """Price of one piece (USD), and its relative uncertainty.

    ``15 kUSD`` alone is a price without a spread.
    """

    price: Money
    spread: Spread = 0.0

    @model_validator(mode="before")
    @classmethod
    def _may_be_text(cls, data: Any) -> Any:
        return _with_text(data, "price")


class Draw(ClusterPart):
    """Power of one piece (W), idle and active; ``20 W`` alone is both."""

    idle: Watts
    active: Watts
    spread: Spread = 0.0

    @model_validator(mode="before")
    @classmethod
    def _may_be_text(cls, data: Any) -> Any:
        return _with_text(data, "idle", "active")

    @model_validator(mode="after")
    def _work_takes_more(self) -> Self:
        if self.idle > self.active:
            raise ValueError(f"idle, {self.idle:g} W, is more than active, {self.active:g} W")
        return self


class Prices(ClusterPart):
    """Prices of a cluster's parts that are known better than the usual ones.

    Parameters
    ----------
    accelerator, node, nic, switch_port, cable
        Of one piece each (:data:`PARTS`).
    energy
        Of a kilowatt-hour.
    switch_ports
        Ports of a switch as it is sold. One that is drawn with more is a tree of such switches that
        never blocks (:func:`topologies.cluster.bill.tree_of_switches`).
    """

    accelerator: Price | None = None
    node: Price | None = None
    nic: Price | None = None
    switch_port: Price | None = None
    cable: Price | None = None
    energy: EnergyPrice | None = None
    switch_ports: Ports | None = None


class PowerDraws(ClusterPart):
    """Power of a cluster's parts, if it is known better than the usual figures.

    ``overhead`` is the power of the whole site over that of the parts (PUE).
    """

    accelerator: Draw | None = None
    node: Draw | None = None
    nic: Draw | None = None
    switch_port: Draw | None = None
    cable: Draw | None = None
    overhead: Overhead | None = None


class _Piece(ClusterPart):
    """Usual figures of a part; None if none is published."""

    price: Price | None = None
    price_source: str = ""
    power: Draw | None = None
    power_source: str = ""


class _Energy(ClusterPart):
    price: EnergyPrice
    spread: Spread
    source: str


class _Overhead(ClusterPart):
    value: Overhead
    spread: Spread
    source: str


class _SwitchPorts(ClusterPart):
    value: Ports
    source: str


class _Usual(ClusterPart):
    """``topologies/prices.yaml``; the network's figures are those of a cable of ``per``."""

    accelerators: dict[str, _Piece]
    node_per_accelerator: _Piece
    per: Bandwidth
    nic: _Piece
    switch_port: _Piece
    cable: _Piece
    energy: _Energy
    overhead: _Overhead
    switch_ports: _SwitchPorts

    def accelerator(self, name: str) -> _Piece:
        """Return the figures of an accelerator, empty if none are published."""
        candidates = named(name)
        known_as = candidates[0].name if len(candidates) == 1 else name
        return self.accelerators.get(known_as, _Piece())


@cache
def usual() -> _Usual:
    """Return the usual prices and power of parts."""
    source = files("topologies") / "prices.yaml"
    return _Usual.model_validate(
        parse_yaml(source.read_text("utf-8"), "topologies/prices.yaml", ClusterError)
    )


class PieceFigures(Struct, frozen=True):
    """Price (USD) and power (W) of one piece of a part, with their sources and uncertainty.

    ``price`` is None if none is published, and so are ``idle`` and ``active``.
    """

    price: float | None = None
    price_spread: float = 0.0
    price_source: str = ""
    idle: float | None = None
    active: float | None = None
    power_spread: float = 0.0
    power_source: str = ""


def figures_of_piece(
    stated: tuple[Price | None, Draw | None], usually: _Piece, times: float = 1.0
) -> PieceFigures:
    """Return the given figures of a piece, and for the rest ``times`` the usual ones.

    Examples
    --------
    >>> figures = figures_of_piece((Price(price="1 kUSD"), None), usual().cable, times=2)
    >>> figures.price, figures.active
    (1000.0, 35.0)
    """
    price, power = stated[0] or usually.price, stated[1] or usually.power
    own_price, own_power = (figure is not None for figure in stated)
    scale, power_scale = (1.0 if is_stated else times for is_stated in (own_price, own_power))
    return PieceFigures(
        price=None if price is None else price.price * scale,
        price_spread=0.0 if price is None else price.spread,
        price_source=YOURS if own_price else usually.price_source,
        idle=None if power is None else power.idle * power_scale,
        active=None if power is None else power.active * power_scale,
        power_spread=0.0 if power is None else power.spread,
        power_source=YOURS if own_power else usually.power_source,
    )
