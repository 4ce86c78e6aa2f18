"""Clusters: fields of a file, the catalogue, the network that a job sees, its bill and prices."""
