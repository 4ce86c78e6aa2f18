"""Workload cards against clusters and traces."""
