"""The runner of control loops: leases are renewed in time, and nothing runs on one that could not be renewed."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from millpond_kernel import loops
from millpond_kernel.db import DatabaseAway
from millpond_kernel.leases import Lease, acquire_lease
from millpond_kernel.loops import Loop, LoopRunner
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration


async def test_lease_when_its_renewal_fails_then_it_is_renewed_before_the_next_pass(
    migrated: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    stop = asyncio.Event()

    async def acquire(*arguments: Any) -> Lease | None:
        if happened and "failed" not in happened:
            happened.append("failed")
            raise DatabaseAway("for a moment")
        if happened:
            stop.set()
        happened.append("renewed" if happened else "taken")
        return await acquire_lease(*arguments)

    async def run_pass(now: datetime, lease: Lease) -> None:
        happened.append("pass")

    monkeypatch.setattr(loops, "acquire_lease", acquire)
    async with migrated.opened("quota") as database:
        loop = Loop("tested", 0.01, run_leased_pass=run_pass, lease_seconds=3.0)
        await asyncio.wait_for(LoopRunner(database, loop).run(stop), 10)
    assert happened[:2] == ["taken", "pass"]
    assert happened[happened.index("failed") + 1] == "renewed"
