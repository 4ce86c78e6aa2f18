"""What calls put on the links of one network, or of many with the same links."""
