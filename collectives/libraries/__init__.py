"""Communication libraries: the algorithms that NCCL, RCCL and gloo choose, and their costs."""
