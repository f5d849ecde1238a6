"""Batch after batch: the next is planned while one is written, and falls with it when that one is refused."""

import asyncio
from datetime import datetime

import pytest

from millpond_kernel.db import SYSTEM
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.comparing import list_differences
from millpond_scheduler.usecases.cycle import Batch
from millpond_scheduler.usecases.shard import Shard
from tests.integration.scheduler.world import ONE_DEVICE, World, limits
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_batch_when_refused_after_the_next_was_planned_then_both_are_dropped_and_decided_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add_node(devices=8)
    share = await world.add_virtual_pool(given=limits(devices=5000))
    for _ in range(7):
        await world.submit(share, devices=ONE_DEVICE)
    leader = world.leader(batch_tasks=2)
    plans: list[Plan] = []
    written: list[Batch] = []
    decide, write = leader._decide, leader._write

    def note_plan(shard: Shard, now: datetime) -> Plan:
        plans.append(decide(shard, now))
        return plans[-1]

    async def refuse_second(batch: Batch) -> Exception | None:
        written.append(batch)
        if len(written) == 1:
            return await write(batch)
        await eventually(lambda: asyncio.sleep(0, len(plans) == 3))  # planned while this one is being written
        monkeypatch.setattr(leader, "_write", write)
        return GuardFailed("refused by the test")

    monkeypatch.setattr(leader, "_decide", note_plan)
    monkeypatch.setattr(leader, "_write", refuse_second)
    assert await leader.step()
    assert [len(plan.placements) for plan in plans] == [2, 2, 1]
    assert await world.value("SELECT count(*) FROM allocation") == 2
    assert leader.shard is not None
    async with world.database.begin(SYSTEM) as unit:
        assert await list_differences(unit, leader.shard) == {}
    while await leader.step():
        pass
    assert await world.value("SELECT count(*) FROM allocation") == 5
    assert await world.value("SELECT count(*) FROM task WHERE state = 'pending'") == 2
    async with world.database.begin(SYSTEM) as unit:
        assert await list_differences(unit, leader.shard) == {}
    await world.assert_counters_are_true()
