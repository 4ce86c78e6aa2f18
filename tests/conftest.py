"""Random cases are the same on every run and every machine, and no example has a time limit."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "twofold", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("twofold")
