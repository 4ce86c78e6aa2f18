"""Families of topologies, a function each: rings, switches, grids, Clos networks, dragonflies."""
