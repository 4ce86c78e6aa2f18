"""Serving simulated by iterations: schedulers of engines, queues, preemption, prefix caches."""
