"""What every room uses and no room is about: errors, names, quantities, text, compiled loops."""
