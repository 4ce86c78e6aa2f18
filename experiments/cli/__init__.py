"""The command line: commands and options with their help, former names, completion."""
