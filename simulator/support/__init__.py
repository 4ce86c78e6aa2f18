"""Helpers of every package: errors, names, quantities, text, limits, compiled loops."""
