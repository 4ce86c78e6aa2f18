"""Functions from a workload to a changed one."""
