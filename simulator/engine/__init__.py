"""Engines, from a workload to a timeline: flow, the model in SimPy's words, repeated steps."""

FORMER_ENGINES = {"fluid": "flow", "auto": "flow"}
"""Names of engines that are still understood in this version, and what they are called now."""
