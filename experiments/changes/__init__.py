"""What-ifs written as text: a change to a step or its cluster, from words to a function."""

from experiments.changes.changed import Change, Changed, changed
from experiments.changes.language import GRAMMAR, parse

__all__ = ["GRAMMAR", "Change", "Changed", "changed", "parse"]
