"""One module per command: a function that asks, and the report that it returns."""
