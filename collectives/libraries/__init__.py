"""How communication libraries carry out a call: which algorithm, and what it costs."""
