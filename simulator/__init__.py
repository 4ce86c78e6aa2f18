"""The model: what a workload, a network and a result are, and the clock."""
