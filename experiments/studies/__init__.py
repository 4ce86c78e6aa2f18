"""Studies: design-space exploration from a file, searched, stored and resumed."""
