"""An event that keeps failing is parked where a person can replay it; the others flow."""

import asyncio
from typing import Any

import pytest

from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_kernel.consuming import MAX_TRIES
from millpond_kernel.dead_letters import ReplayRefused, list_dead_letters, replay_dead_letter
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from tests.integration.kernel.stage import Stage, assert_dense, note_effect, noting, run_as_owner, running
from tests.waiting import eventually

pytestmark = pytest.mark.integration


class Poisoned:
    """Fails on one sequence for so many times, with an effect that must be undone each time."""

    def __init__(self, seq: int, times: int) -> None:
        self.seq, self.times, self.failures = seq, times, 0

    async def __call__(self, unit: UnitOfWork, envelope: Envelope, event: Any) -> None:
        await note_effect(unit, envelope, event)
        if envelope.seq == self.seq and self.failures < self.times:
            self.failures += 1
            raise ValueError(f"cannot digest {envelope.seq}")


async def _apply_ten(stage: Stage, consumer: Consumer) -> None:
    await stage.make_things(1)
    await stage.change_many(10)

    async def applied() -> bool:
        return await stage.cursor(consumer) == 10

    async with running(stage.relay().run, stage.runner(consumer).run):
        await eventually(applied)


async def test_event_when_it_fails_each_time_then_parked_and_others_flow_and_replay_applies_it(stage: Stage) -> None:
    poison = Poisoned(4, MAX_TRIES + 1)
    consumer = Consumer("effects", "quota", {ApiKeyRevoked: poison})
    await _apply_ten(stage, consumer)
    assert await stage.effects() == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    (letter,) = await list_dead_letters(stage.applier)
    assert (letter.consumer, letter.publisher, letter.seq) == ("effects", "quota", 4)
    assert letter.type == ApiKeyRevoked.type
    assert letter.error == "ValueError: cannot digest 4"
    with pytest.raises(ReplayRefused):
        await replay_dead_letter(stage.applier, [Consumer("other", "quota", {})], letter.id)
    poison.times = 0
    await replay_dead_letter(stage.applier, [consumer], letter.id)
    assert_dense(await stage.effects(), 10)
    # Its view had gone on meanwhile, and does not go back.
    assert set((await stage.view()).values()) == {10}
    assert await list_dead_letters(stage.applier) == []
    with pytest.raises(ReplayRefused):
        await replay_dead_letter(stage.applier, [consumer], letter.id)


async def test_event_when_it_fails_twice_then_applied_once_and_not_parked(stage: Stage) -> None:
    # The batch fails as a whole first, then the event by itself.
    await _apply_ten(stage, Consumer("effects", "quota", {ApiKeyRevoked: Poisoned(4, 3)}))
    assert_dense(await stage.effects(), 10)
    assert await list_dead_letters(stage.applier) == []


async def test_event_when_stopped_while_it_is_tried_again_then_neither_parked_nor_skipped(stage: Stage) -> None:
    await stage.make_things(1)
    await stage.change_many(10)
    await stage.relay().number()
    poison = Poisoned(4, 3)
    stop = asyncio.Event()
    runner = stage.runner(Consumer("effects", "quota", {ApiKeyRevoked: poison}))
    task = asyncio.ensure_future(runner.run(stop))

    async def failed() -> bool:
        return poison.failures >= 2

    await eventually(failed)
    stop.set()
    await task
    assert await stage.effects() == [1, 2, 3]
    consumer = noting()

    async def applied() -> bool:
        return await stage.cursor(consumer) == 10

    async with running(stage.runner(consumer).run):
        await eventually(applied)
    assert_dense(await stage.effects(), 10)
    assert await list_dead_letters(stage.applier) == []


async def test_event_when_it_cannot_be_parked_either_then_tried_and_parked_later(stage: Stage) -> None:
    await run_as_owner(stage.migrated, "ALTER TABLE billing.dead_letter RENAME TO gone")
    poison = Poisoned(4, 10**6)
    consumer = Consumer("effects", "quota", {ApiKeyRevoked: poison})
    await stage.make_things(1)
    await stage.change_many(10)

    async def failed_again() -> bool:
        return poison.failures > MAX_TRIES + 2

    async def applied() -> bool:
        return await stage.cursor(consumer) == 10

    async with running(stage.relay().run, stage.runner(consumer).run):
        await eventually(failed_again)
        await run_as_owner(stage.migrated, "ALTER TABLE billing.gone RENAME TO dead_letter")
        await eventually(applied)
    assert await stage.effects() == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert [letter.seq for letter in await list_dead_letters(stage.applier)] == [4]


async def test_event_when_its_type_is_unknown_then_passed_over(stage: Stage) -> None:
    consumer = Consumer("effects", "quota", {})
    await _apply_ten(stage, consumer)
    assert await stage.effects() == []
    assert await list_dead_letters(stage.applier) == []
