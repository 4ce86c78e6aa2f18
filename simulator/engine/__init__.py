"""Engines: one signature, with SimPy's clock or without, from a workload to a timeline."""
