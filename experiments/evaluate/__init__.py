"""Many scenarios at once: design points, processes, generated steps, serving instances."""
