"""Files of schedules, and logs of benchmarks: nccl-tests, OSU, perftest, Inspector."""
