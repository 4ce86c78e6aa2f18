"""From what a profiler recorded of a rank to the rank's graph: what waits for what."""
