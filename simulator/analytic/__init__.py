"""The step without a clock, for many scenarios at once: a contracted graph and its longest path."""
