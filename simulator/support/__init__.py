"""Helpers of every package: errors, names, units, plug-ins, limits of files, compiled loops."""
