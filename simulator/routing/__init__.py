"""Routes: which links a message takes under each policy (hashed, adaptive, Valiant)."""
