"""Studies: design spaces from a file, searched, stored and resumed; the text of their answer."""
