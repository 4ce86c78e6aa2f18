"""Real what-ifs on one GPU: programs whose kernels, host code and copies take a stated time."""
