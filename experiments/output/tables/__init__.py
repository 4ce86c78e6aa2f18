"""Reports as tables, for people; ``printing`` finds the function of a report."""
