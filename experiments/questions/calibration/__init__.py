"""`calibrate`: a cluster fitted to a trace, to logs of benchmarks, or to measured steps."""
