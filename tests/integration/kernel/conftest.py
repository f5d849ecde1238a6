"""Fixtures of the kernel's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.databases import MigratedDatabase
from tests.integration.kernel.stage import Stage, open_stage


@pytest.fixture
async def stage(migrated: MigratedDatabase) -> AsyncIterator[Stage]:
    async with open_stage(migrated) as opened:
        yield opened
