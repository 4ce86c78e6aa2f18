"""Generated steps: model, parallelism, framework and host to a workload; memory; launch files."""
