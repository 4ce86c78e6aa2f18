"""A local page on which the figures of a step follow sliders and switches."""
