"""Kernels, copies, API calls and ranges of processes on GPUs, as system profilers export them."""
