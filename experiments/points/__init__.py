"""Changes of one step: ``utility``, ``sweep``, ``compare``, ``what-if``; failures by their MTBF."""
