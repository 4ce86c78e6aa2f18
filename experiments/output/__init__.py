"""Renderers of documents: terminal, figures, pages, Perfetto, Parquet; progress bars."""
