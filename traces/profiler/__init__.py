"""From a profiler's events to a rank's graph: launches, streams, waits of the host, the step."""
