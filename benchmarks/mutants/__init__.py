"""Mutation testing: do tests notice a wrong line."""
