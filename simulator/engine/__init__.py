"""Engines: one signature, from a workload to a timeline, with a clock or without."""

FORMER_ENGINES = {"fluid": "flow", "auto": "flow"}
"""Names of engines that are still understood in this version, and what they are called now."""
