"""Dumps of PyTorch's flight recorder: calls of all ranks that had not ended, and who is missing."""
