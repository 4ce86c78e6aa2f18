"""Priors: the errors that machines, kernels and steps of a kind had where they were measured."""
