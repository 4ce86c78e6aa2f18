"""Programs that measure: speed and memory (here), and results against published ones."""
