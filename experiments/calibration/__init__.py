"""A cluster fitted to what a trace or benchmark logs measured."""
