"""One point of a study: where it is, what it answers, what that leaves open, by which code."""
