"""Libraries: NCCL's choice and constants, RCCL, gloo; which algorithm, and what it costs."""
