"""What machines, kernels and steps like it were off by, known before a trace is read."""
