"""Ranks that were not recorded: copies of those that were, and what a sample of ranks tells."""
