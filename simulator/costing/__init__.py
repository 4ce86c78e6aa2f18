"""Costs of calls: their load on the links of one network, or of many with the same links."""
