"""Serving simulated by iterations: schedulers of engines, use of KV blocks, prefix caches."""
