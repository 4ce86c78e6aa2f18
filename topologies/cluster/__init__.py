"""Clusters: what a file says, the catalogue, and the network that a job sees on one."""
