"""`validate`: predictions against measurements of recordings, steps, calls and serving."""
