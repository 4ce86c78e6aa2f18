"""Reports as tables, figures, Perfetto and Parquet files; progress."""
