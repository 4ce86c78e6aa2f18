"""The words of every answer: headline, cause, trust line, notes, tables and charts."""
