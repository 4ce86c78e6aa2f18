"""The other commands, one module each: a function that answers, and the report it returns."""
