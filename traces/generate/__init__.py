"""Generated steps: model or ``config.json``, parallelism, framework, host; memory; launch files."""
