"""Renderers of documents: terminal, figures, pages, Perfetto, Parquet; how numbers are rounded."""
