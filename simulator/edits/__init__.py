"""Edits: functions from a workload to a changed one: ops, overlap, replicas, several jobs."""
