"""Many scenarios at once: design points, processes; memory, blocks and fleets of serving."""
