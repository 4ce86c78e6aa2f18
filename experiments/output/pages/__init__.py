"""Pages: an answer as one HTML file that opens without a network and can be asked further."""
