"""Text of the answers: headlines, causes, trust, notes, tables and charts."""
