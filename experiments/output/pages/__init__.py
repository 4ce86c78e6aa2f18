"""Templates, styles and scripts of pages: one HTML file that opens without a network."""
