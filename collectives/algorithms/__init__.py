"""Functions that return a schedule."""
