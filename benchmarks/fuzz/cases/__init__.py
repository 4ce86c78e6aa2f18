"""Chosen bad inputs, by what they are inputs of."""
