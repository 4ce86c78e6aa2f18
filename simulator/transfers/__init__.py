"""A call transfer by transfer: its program, max-min shares of links, lockstep, compiled loop."""
