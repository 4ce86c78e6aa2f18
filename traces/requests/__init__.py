"""Requests of serving: a table of them, readers of published traces, and seeded generators."""
