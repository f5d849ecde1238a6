"""Every committed event has its effect exactly once and in order, whatever is doubled, deleted or cancelled."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_kernel import consuming, outbox
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM
from millpond_kernel.messages import Message
from millpond_kernel.pausing import end_task
from millpond_kernel.streams import read_feed, stream_fields
from tests.integration.kernel.stage import Stage, assert_dense, noting, running
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_numbering_when_eight_writers_and_two_relays_then_dense_and_generations_rise(stage: Stage) -> None:
    await stage.make_things(12)
    async with running(stage.relay().run, stage.relay().run):
        await asyncio.gather(*(stage.change_many(80, seed) for seed in range(8)))

        async def numbered() -> bool:
            return await stage.head() == 640

        await eventually(numbered)
    async with stage.publisher.begin(SYSTEM) as unit:
        rows = await unit.fetch("SELECT seq, subject, generation FROM outbox ORDER BY seq")
    assert_dense([row["seq"] for row in rows], 640)
    last: dict[str, int] = {}
    for row in rows:
        assert row["generation"] > last.get(row["subject"], 0), f"{row['subject']} went back at {row['seq']}"
        last[row["subject"]] = row["generation"]
    published = stream_fields(await stage.redis.xread({stage.stream: "0-0"}))
    assert [Envelope.model_validate_json(fields[b"e"]).seq for fields in published] == list(range(1, 641))


async def test_faststream_2611_effects_when_consumed_by_two_copies_and_stream_deleted_then_exactly_once(
    stage: Stage,
) -> None:
    await stage.make_things(5)
    copies = [noting(), noting()]

    async def delete_stream() -> None:
        for _ in range(6):
            await asyncio.sleep(0.15)
            await stage.redis.delete(stage.stream)

    async def all_applied() -> bool:
        return await stage.cursor(copies[0]) == 320

    async with running(stage.relay().run, stage.relay().run, *(stage.runner(copy).run for copy in copies)):
        await asyncio.gather(delete_stream(), *(stage.change_many(80, seed) for seed in range(4)))
        await eventually(all_applied)
    assert_dense(await stage.effects(), 320)


async def test_consumer_when_far_behind_then_it_asks_the_feed_until_the_stream_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.make_things(1)
    async with stage.publisher.begin(SYSTEM) as unit:
        for generation in range(1, 2001):
            unit.emit(ApiKeyRevoked(api_key_id=stage.things[0], tenant_id=None, generation=generation))
    relay, consumer, asked = stage.relay(), noting(), []
    while await relay.number():
        pass
    await relay.publish()
    await stage.redis.xtrim(stage.stream, maxlen=1200, approximate=False)  # 801 is the first that it holds

    async def note_reading(feed: ServiceClient, publisher: str, after: int) -> tuple[int, list[Message]]:
        asked.append(after)
        return await read_feed(feed, publisher, after)

    monkeypatch.setattr(consuming, "read_feed", note_reading)
    async with running(stage.runner(consumer).run):
        await eventually(lambda: consumer.applied_seq == 2000)
        assert asked == [0, 500]
        assert consumer.lag == 0
    assert_dense(await stage.effects(), 2000)


async def test_eventuous_222_kamu_1398_when_a_lower_id_commits_late_then_it_is_numbered_after_and_delivered(
    stage: Stage,
) -> None:
    await stage.make_things(3)
    consumer, written, may_end = noting(), asyncio.Event(), asyncio.Event()

    async def hold_open() -> None:
        async with stage.publisher.begin(SYSTEM) as unit:
            await unit.execute(
                "INSERT INTO outbox (event_id, type, subject, generation, body, happened_at)"
                " VALUES (gen_random_uuid(), 'quota.api_key_revoked.v1', 'late', 1, $1, clock_timestamp())",
                ApiKeyRevoked(api_key_id=stage.things[0], tenant_id=None, generation=1).model_dump(mode="json"),
            )
            written.set()
            await may_end.wait()

    async def reached(count: int) -> None:
        async def is_there() -> bool:
            return await stage.cursor(consumer) == count

        await eventually(is_there)

    holding = asyncio.ensure_future(hold_open())
    async with running(stage.relay().run, stage.runner(consumer).run):
        await written.wait()
        await stage.change_many(100)
        await reached(100)  # nobody waits for the one that is open
        may_end.set()
        await holding
        await reached(101)
    assert_dense(await stage.effects(), 101)
    assert (await stage.view())["late"] == 1


async def test_effects_when_an_event_is_added_again_then_redis_refuses_and_no_effect_doubles(stage: Stage) -> None:
    await stage.make_things(2)
    consumer = noting()

    async def applied(count: int) -> None:
        async def reached() -> bool:
            return await stage.cursor(consumer) == count

        await eventually(reached)

    async with running(stage.relay().run, stage.runner(consumer).run):
        await stage.change_many(20)
        await applied(20)
        copies: Any = await stage.redis.xrange(stage.stream)
        # A stream that lost its top and was filled again from an old copy, as after a failover.
        await stage.redis.delete(stage.stream)
        for stream_id, fields in copies:
            await stage.redis.xadd(stage.stream, fields, id=stream_id)
        await stage.change_many(20)
        await applied(40)
    assert_dense(await stage.effects(), 40)


async def test_stream_when_ahead_of_the_database_then_its_copies_are_thrown_away(stage: Stage) -> None:
    await stage.make_things(2)
    await stage.redis.xadd(stage.stream, {"e": "from a future that a restore undid"}, id="500-0")
    consumer = noting()

    async def applied() -> bool:
        return await stage.cursor(consumer) == 10

    async with running(stage.relay().run, stage.runner(consumer).run):
        await stage.change_many(10)
        await eventually(applied)
    assert_dense(await stage.effects(), 10)
    entries: Any = await stage.redis.xrange(stage.stream)
    assert entries[-1][0] == b"10-0"


async def test_prefect_18606_stream_when_a_consumer_is_gone_then_it_is_trimmed_all_the_same_and_nothing_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "STREAM_LENGTH", 50)
    await stage.make_things(2)
    consumer = noting()
    await stage.change_many(350)

    async def published() -> bool:
        last: Any = await stage.redis.xrevrange(stage.stream, count=1)
        return bool(last) and last[0][0] == b"350-0"

    async def applied() -> bool:
        return await stage.cursor(consumer) == 350

    async with running(stage.relay().run):
        await eventually(published)
    assert await stage.redis.xlen(stage.stream) < 250
    async with running(stage.runner(consumer).run):
        await eventually(applied)
    assert_dense(await stage.effects(), 350)


async def test_consumer_when_the_stream_holds_rubbish_then_it_reads_the_feed(stage: Stage) -> None:
    await stage.make_things(2)
    await stage.change_many(5)
    await stage.relay().number()
    await stage.redis.xadd(stage.stream, {"x": "not an envelope"}, id="1-0")
    consumer = noting()

    async def applied() -> bool:
        return await stage.cursor(consumer) == 5

    async with running(stage.runner(consumer).run):
        await eventually(applied)
    assert_dense(await stage.effects(), 5)


# The Redis client leaves a connection to the garbage collector when it is cancelled while it connects.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_b13_caura_1580_effects_when_relays_and_consumers_are_cancelled_at_random_then_exactly_once(
    stage: Stage,
) -> None:
    await stage.make_things(5)
    consumer = noting()
    chance = random.Random(7)
    written = asyncio.Event()

    async def restart_while_written(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        while not written.is_set():
            task = asyncio.ensure_future(run(asyncio.Event()))
            await asyncio.wait({task}, timeout=chance.uniform(0.02, 0.3))
            await end_task(task)

    async def write() -> None:
        await asyncio.gather(*(stage.change_many(80, seed) for seed in range(4)))
        written.set()

    async def all_applied() -> bool:
        return await stage.cursor(consumer) == 320

    runs = [stage.relay().run, stage.relay().run, stage.runner(consumer).run, stage.runner(noting()).run]
    await asyncio.gather(write(), *(restart_while_written(run) for run in runs))
    async with running(*runs):
        await eventually(all_applied)
    assert_dense(await stage.effects(), 320)
    gc.collect()


async def test_cursor_when_nothing_of_a_batch_is_of_effect_then_it_is_written_later_and_no_effect_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies pass what neither has a handler for; then one applies what comes, and the other hears of it."""
    monkeypatch.setattr(consuming, "PASSED_SECONDS", 3600.0)
    await stage.make_things(1)
    copies = [noting(), noting()]
    names = [f"pass-{number}" for number in range(3)]
    async with running(stage.relay().run, *(stage.runner(copy).run for copy in copies)):
        for name in names:
            await _emit_unheeded(stage, name)
        await eventually(lambda: [copy.applied_seq for copy in copies] == [3, 3])
        assert await stage.cursor(copies[0]) == 0
        await stage.change_many(2)
        await eventually(lambda: [copy.applied_seq for copy in copies] == [5, 5])
    assert await stage.effects() == [4, 5]
    assert await stage.cursor(copies[0]) == 5


async def test_cursor_when_only_events_of_no_effect_came_then_it_is_written_in_the_end(stage: Stage) -> None:
    consumer = noting()
    async with running(stage.relay().run, stage.runner(consumer).run):
        await _emit_unheeded(stage, "pass")

        async def is_written() -> bool:
            return await stage.cursor(consumer) == 1

        await eventually(is_written)


async def _emit_unheeded(stage: Stage, name: str) -> None:
    """An event for which no consumer of the stage has a handler."""
    async with stage.publisher.begin(SYSTEM) as unit:
        await unit.execute(
            "INSERT INTO outbox (event_id, type, subject, generation, body, happened_at)"
            " VALUES (gen_random_uuid(), 'quota.unheeded.v1', $1, 1, $2, clock_timestamp())",
            name,
            {},
        )


async def test_publishing_when_the_stream_is_not_where_this_relay_left_it_then_all_that_is_missing_is_added(
    stage: Stage,
) -> None:
    await stage.make_things(1)
    first, second = stage.relay(), stage.relay()

    async def numbers_in_stream() -> list[int]:
        found = stream_fields(await stage.redis.xread({stage.stream: "0-0"}))
        return [Envelope.model_validate_json(fields[b"e"]).seq for fields in found]

    await stage.change_many(2)
    await first.publish(await first.number())
    await stage.change_many(2)
    unpublished = await first.number()
    await stage.change_many(2)
    assert await second.publish(await second.number()) == 4  # the other's two before its own
    assert await first.publish(unpublished) == 0
    await stage.change_many(1)
    assert await first.publish(await first.number()) == 1
    assert await numbers_in_stream() == [1, 2, 3, 4, 5, 6, 7]
    await stage.redis.delete(stage.stream)
    await stage.change_many(1)
    assert await first.publish(await first.number()) == 8
    assert await numbers_in_stream() == list(range(1, 9))
