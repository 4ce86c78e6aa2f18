"""What the command line asks: a function per command, whose parameters are its options."""
