"""The other commands, one module each: a function that asks, and the report that it returns."""
