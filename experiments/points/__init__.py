"""Many changes of one step: ``utility``, ``sweep``, ``curve``, ``compare``, ``what-if``."""
