"""Costs of calls, slow-down of kernels, steps without a profiler's stalls or at a percentile."""
