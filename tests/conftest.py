"""What holds for every test: generated examples are judged by their outcome, never by how long a busy machine takes."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile("millpond", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millpond")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A test that sets up logging does so for itself: a later one must not write to its closed output."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
