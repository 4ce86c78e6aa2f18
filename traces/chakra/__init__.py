"""Chakra execution traces, read and written."""
