"""What collectives cost and how kernels slow down, as the model or the trace says."""
