"""Programs that measure: speed and memory (here), and results against published ones."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does, before numpy is read
