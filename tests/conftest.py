"""What holds for every test: generated examples are judged by their outcome, never by how long a busy machine takes."""

from hypothesis import HealthCheck, settings

settings.register_profile("millpond", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millpond")
