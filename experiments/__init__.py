"""Questions: what-ifs, sweeps, comparisons, figures and the command line."""
