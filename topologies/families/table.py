"""The table of all families, where new ones are registered, and those that distributions add."""

from simulator.support.names import same_name
from simulator.support.plugins import TOPOLOGIES, load_plugin, names_added, plugin_named
from topologies.families import clos, dragonfly, grid, low_diameter, ring_and_switch
from topologies.families.family import Family, ScaleUpRole

FAMILIES: dict[str, Family] = {
    **ring_and_switch.FAMILIES,
    **grid.FAMILIES,
    **dragonfly.FAMILIES,
    **low_diameter.FAMILIES,
    **clos.FAMILIES,
}
"""Every family by its name in a spec."""

SCALE_UP_ROLES: dict[str, ScaleUpRole] = {
    name: family.scale_up for name, family in FAMILIES.items() if family.scale_up is not None
}
"""Families that a cluster file may name as ``scale_up.topology``, with their roles."""


def family_named(name: str) -> tuple[str, Family] | None:
    """Return the spelling and the family of a name in a spec: the table's, else a distribution's.

    Examples
    --------
    >>> family_named("Fat-Tree")[0], family_named("heart")
    ('fat_tree', None)
    """
    native = same_name(name, FAMILIES)
    if native is not None:
        return native, FAMILIES[native]
    added = plugin_named(TOPOLOGIES, name)
    return None if added is None else (added.name, load_plugin(added, as_family))


def as_family(loaded: object) -> Family:
    """Refuse what is not a family, or cannot build its own example."""
    if not isinstance(loaded, Family):
        raise TypeError(f"write a topologies.families.family.Family, not a {type(loaded).__name__}")
    return loaded


def family_names() -> tuple[str, ...]:
    """Return the names of all families, those that distributions add last."""
    return (*FAMILIES, *names_added(TOPOLOGIES, tuple(FAMILIES)))
