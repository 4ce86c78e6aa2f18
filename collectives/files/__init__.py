"""Schedules in files."""
