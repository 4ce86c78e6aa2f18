"""Renderers of documents: terminal, figures, pages, Perfetto, Parquet; formats of numbers."""
