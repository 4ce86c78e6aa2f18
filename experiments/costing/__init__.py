"""Costs of collectives and slow-down of kernels, by the model or by the trace."""
