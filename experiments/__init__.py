"""Questions: one function per command, and what they return.

Import what you need from the module of its name: ``from experiments.points.utility import
utility``. The package itself imports nothing, so that the command line starts fast.
"""
