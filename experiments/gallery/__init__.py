"""Programs that each make or show one thing, to be run and read."""
