"""A call transfer by transfer: its program, its state, the compiled loop that shares links."""
