"""Bad inputs, chosen and random: that every command answers them, or refuses them in one line.

``make fuzz MINUTES=10 SEED=1`` runs :mod:`benchmarks.fuzz.__main__`.
"""
