"""Requests of serving: one table of them, readers of others' traces, and seeded generators."""
