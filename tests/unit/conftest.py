"""Hypothesis for unit tests: no clock decides, and the same examples each time."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("unit")
