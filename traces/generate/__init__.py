"""A workload from a model's shape, before there is a trace."""
