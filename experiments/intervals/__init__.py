"""The 95 % interval of what a change does to a step: sources, propagation, scatter, bound."""
