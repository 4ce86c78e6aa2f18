"""The table of all families: what a new one is entered in."""

from topologies.families import clos, dragonfly, grid, ring_and_switch
from topologies.families.family import Family, ScaleUpRole

FAMILIES: dict[str, Family] = {
    **ring_and_switch.FAMILIES,
    **grid.FAMILIES,
    **dragonfly.FAMILIES,
    **clos.FAMILIES,
}
"""Every family by its name in a spec."""

SCALE_UP_ROLES: dict[str, ScaleUpRole] = {
    name: family.scale_up for name, family in FAMILIES.items() if family.scale_up is not None
}
"""Of the families that a cluster file may name as ``scale_up.topology``: how they serve there."""
