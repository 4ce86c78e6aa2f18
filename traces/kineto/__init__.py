"""Files of the PyTorch profiler (Kineto), read and written."""
