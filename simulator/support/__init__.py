"""Helpers of every package: errors, names, quantities with units, file limits, compiled loops."""
