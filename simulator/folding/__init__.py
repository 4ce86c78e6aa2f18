"""Equal ranks: found by colour refinement, simulated once, or held by representatives."""
