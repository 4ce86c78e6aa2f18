"""Many changes of one step: utilities, sweeps, curves, clusters and what-ifs, over one report."""
