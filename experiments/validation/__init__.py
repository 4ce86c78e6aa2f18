"""Predictions against what others measured: tables of points, recordings of one program."""
