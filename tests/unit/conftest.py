"""Hypothesis for unit tests: no clock decides, and the same examples each time."""

from hypothesis import HealthCheck, settings

from tests.machine import fake_jars, fake_java, no_java

__all__ = ["fake_jars", "fake_java", "no_java"]

settings.register_profile(
    "unit",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("unit")
