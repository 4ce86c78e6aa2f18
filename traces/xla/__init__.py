"""Profiles of XLA: JAX's ``.xplane.pb`` and JSON, and bundles of ``nsys-jax``."""
