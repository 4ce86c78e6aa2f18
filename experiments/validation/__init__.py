"""Predictions against what was measured elsewhere: tables of points, recordings of one program."""
