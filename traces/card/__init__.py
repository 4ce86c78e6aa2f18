"""Workload cards and packages of CCL-Bench."""
