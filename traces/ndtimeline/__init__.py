"""ByteDance's NDTimeline: tables of the operations of a pipeline, worker by worker."""
