"""Functions that return a schedule, a file per family: ring, tree, direct, hierarchical, torus."""
