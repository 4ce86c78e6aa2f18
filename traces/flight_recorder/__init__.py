"""Dumps of PyTorch's flight recorder: pending calls of all ranks, and the missing ranks."""
