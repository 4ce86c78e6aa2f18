"""Analyses of a timeline: critical path, attribution, metrics such as MFU, overlap, TTFT, TPOT."""
