"""Which links a message takes."""
