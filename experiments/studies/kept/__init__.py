"""Studies read back from their directories, and points of them looked at closely."""
