"""Readers of other tools' files into workloads, and writers of them."""
