"""Generated steps: from a model's shape, parallelism and pipeline schedule to a workload."""
