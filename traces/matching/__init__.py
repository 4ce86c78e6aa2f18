"""From the graphs of the ranks to one workload: calls matched, clocks aligned."""
