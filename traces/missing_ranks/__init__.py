"""Ranks that were not recorded."""
