"""The step without a clock: a contracted graph and its longest path, at many points at once."""
