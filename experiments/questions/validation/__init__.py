"""`validate`: predictions beside what was measured, of recordings, steps, calls and serving."""
