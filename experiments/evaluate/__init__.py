"""Evaluation of many scenarios: design points, processes, and runs of serving."""
