"""Priors: tables of errors that machines, kernels and steps of a kind had; doubts of an answer."""
