"""Tables of measured errors by kind of machine, kernel and step; reasons to doubt an answer."""
