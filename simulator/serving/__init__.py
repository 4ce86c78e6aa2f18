"""Serving: requests, queues, schedulers and caches of instances, iteration by iteration."""
