"""Analyses of a timeline: critical path, attribution, and the metrics that people quote."""
