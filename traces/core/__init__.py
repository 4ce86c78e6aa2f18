"""Common to all readers: typed events, which kernels communicate, the typical step, sniffing."""
