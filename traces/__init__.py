"""Files of other tools to a workload, and back."""
