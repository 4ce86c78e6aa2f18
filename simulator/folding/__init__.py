"""Folding: equivalent ranks are found by colour refinement and simulated once."""
