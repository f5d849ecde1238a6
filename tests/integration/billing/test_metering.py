"""Allocations become segments exactly once, whoever else is at work: real tables, constraints and connections."""

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from prometheus_client import REGISTRY

from millpond_billing.background.work import close_statements
from millpond_billing.consumers.scheduler import allocations_consumer
from millpond_billing.loops.due import DueTimes, due_loop
from millpond_billing.store import segments
from millpond_billing.store import statements as rows
from millpond_billing.store.segments import WrittenRange, exact, list_written
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases import metering
from millpond_billing.usecases.metering import take_allocations
from millpond_billing.usecases.periods import find_period, keep_up
from millpond_billing.usecases.prices import publish_prices
from millpond_billing.usecases.statements import draft_statement
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.bills import ChargeKind, PriceLine, PriceVersionSpec, PriceVersionView
from millpond_contracts.bodies.tenants import Role, TenantView
from millpond_contracts.events import Envelope
from millpond_contracts.quantities import ExactDecimal
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import acquire_lease
from millpond_kernel.messages import Message
from millpond_kernel.tenancy import Principal
from tests.integration.billing.stage import START, allocation, event_of, seconds, share, states_of, tenant_view
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration

NOW = datetime(2024, 5, 10, tzinfo=UTC)


@pytest.fixture
async def tenant(database: Database) -> TenantView:
    known = tenant_view()
    async with database.begin(SYSTEM) as unit:
        await save_tenant(unit, known)
    return known


@pytest.fixture
async def doors(migrated: MigratedDatabase) -> AsyncIterator[list[Database]]:
    """Four more processes' doors."""
    async with AsyncExitStack() as stack:
        opened = [migrated.database("billing", pool_size=2) for _ in range(4)]
        for door in opened:
            await door.open()
            stack.push_async_callback(door.close)
        yield opened


async def take(database: Database, *states: AllocationView) -> None:
    async with database.begin(SYSTEM) as unit:
        await take_allocations(unit, states)


async def count(database: Database, table: str = "segment") -> int:
    async with database.begin(SYSTEM) as unit:
        return int(await unit.fetchval(f"SELECT count(*) FROM {table}"))


async def test_released_allocation_when_noted_twice_then_billed_once(database: Database, tenant: TenantView) -> None:
    held = allocation(tenant.tenant_id)
    for _ in range(2):
        await take(database, held, held)
    async with database.begin(SYSTEM) as unit:
        period = await find_period(unit, tenant, datetime(2024, 1, 31, 16, tzinfo=UTC), NOW)
        statement = await draft_statement(unit, tenant, period, NOW)
        written = [one async for one in list_written(unit, WrittenRange(tenant.tenant_id, period.start, period.end))]
    # 100.25 s of active time are 101 whole seconds; 2 cores at 0.18 and 4 GiB at 0.018 an hour.
    expected = Decimal(101) / 3600 * (2 * Decimal("0.18") + 4 * Decimal("0.018"))
    assert [one.segment.seconds for one in written] == [101, 101]
    assert statement.total.amount == round(expected, 2)
    assert sum(money.amount for money in statement.subtotals.values()) == statement.total.amount
    assert ChargeKind.ROUND_UP in statement.subtotals


async def test_b1_openmeter_5118_when_the_write_fails_then_the_retry_counts_once(
    database: Database, tenant: TenantView, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, insert = allocation(tenant.tenant_id), segments.insert_rated

    async def insert_and_die(*arguments: Any) -> None:
        await insert(*arguments)
        raise ConnectionResetError

    with monkeypatch.context() as patched:
        patched.setattr(segments, "insert_rated", insert_and_die)
        with pytest.raises(ConnectionResetError):
            await take(database, held)
    assert (await count(database), await count(database, "allocation_view")) == (0, 0)
    await take(database, held)
    assert await count(database) == 2


async def test_vexa_330_when_identical_stops_come_at_once_then_one_segment_each(
    database: Database, tenant: TenantView, doors: list[Database]
) -> None:
    held = [allocation(tenant.tenant_id) for _ in range(20)]

    async def deliver(door: Database, seed: int) -> None:
        shuffled = [state for one in held for state in states_of(one)]
        random.Random(seed).shuffle(shuffled)
        for place in range(0, len(shuffled), 7):
            batch = sorted(shuffled[place : place + 7], key=lambda one: one.allocation_id)
            await take(door, *batch)

    await asyncio.gather(*(deliver(door, seed) for seed, door in enumerate(doors)))
    assert await count(database) == 40
    assert await count(database, "adjustment") == 0


async def test_b13_langfuse_16292_when_a_batch_is_replayed_through_the_consumer_then_nothing_is_added(
    database: Database, tenant: TenantView
) -> None:
    consumer = allocations_consumer()
    states = [state for _ in range(30) for state in states_of(allocation(tenant.tenant_id, devices=(share(),)))]
    messages = [_message(seq, state) for seq, state in enumerate(states, 1)]
    for replayed in (messages, messages, messages[10:50], messages[::-1]):
        async with database.begin(SYSTEM) as unit:
            await consumer.dispatch_all(unit, replayed)
    assert await count(database) == 90


def _message(seq: int, state: AllocationView) -> Message:
    event = event_of(state)
    envelope = Envelope(
        seq=seq,
        id=uuid4(),
        type=event.type,
        source="scheduler",
        subject=event.subject(),
        tenant_id=event.tenant(),
        generation=event.generation_of(),
        happened_at=START,
        body=event.model_dump(mode="json"),
    )
    return Message.of(envelope.model_dump(mode="json"))


async def test_cf_abacus_631_when_facts_contradict_time_then_clamped_with_an_anomaly_and_never_negative(
    database: Database, tenant: TenantView
) -> None:
    backwards = allocation(tenant.tenant_id, active_at=START - seconds(5), released_at=START - seconds(9))
    await take(database, backwards)
    async with database.begin(SYSTEM) as unit:
        kinds = [row["kind"] for row in await unit.fetch("SELECT kind FROM anomaly ORDER BY detail")]
        minimum = await unit.fetch("SELECT kind, seconds FROM segment ORDER BY sku")
    assert kinds == ["out_of_order", "out_of_order"]
    assert [(row["kind"], row["seconds"]) for row in minimum] == [("minimum", 60), ("minimum", 60)]


def test_decimals_when_finer_than_the_column_then_refused_before_postgres_rounds_them() -> None:
    assert exact(Decimal("0.000000000000000001"), 18) == Decimal("1e-18")
    for wrong in (Decimal("0.0000000000000000001"), Decimal("NaN"), Decimal("Infinity")):
        with pytest.raises(ValueError, match="decimals"):
            exact(wrong, 18)


async def test_unrated_when_more_stay_than_a_pass_takes_then_those_that_can_be_rated_are_reached(
    database: Database, tenant: TenantView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "WAITING_BATCH", 1)
    later = tenant_view()
    # Nobody prices reserved terms: these stay, and the ids of the second half come after them.
    stuck = [allocation(tenant.tenant_id, term="reserved") for _ in range(3)]
    waiting = [allocation(later.tenant_id) for _ in range(2)]
    await take(database, *stuck, *waiting)
    async with database.begin(SYSTEM) as unit:
        await save_tenant(unit, later)
    rated = 0
    for _ in range(100):
        async with database.begin(SYSTEM) as unit:
            rated += await metering.rate_waiting(unit)
    assert (rated, await count(database)) == (2, 4)


async def test_segments_when_written_wrongly_then_the_database_refuses(database: Database, tenant: TenantView) -> None:
    await take(database, allocation(tenant.tenant_id))
    columns = ", ".join(column for column in segments._TYPES if column not in ("id", "kind", "start_at", "usage"))
    copy = (
        f"INSERT INTO segment (id, kind, start_at, usage, {columns})"
        f" SELECT gen_random_uuid(), {{}}, {columns} FROM segment LIMIT 1"
    )
    for values, error in (
        ("kind, start_at + interval '1 second', usage", asyncpg.ExclusionViolationError),
        ("kind, start_at, usage", asyncpg.IntegrityConstraintViolationError),
        ("kind, end_at, usage", asyncpg.CheckViolationError),
        ("kind, start_at + interval '1 hour', usage", asyncpg.CheckViolationError),
        ("'waived', start_at - interval '1 day', usage", asyncpg.CheckViolationError),
        ("kind, start_at, usage + 0.000000000000000000000001", asyncpg.CheckViolationError),
    ):
        with pytest.raises(error):
            async with database.begin(SYSTEM) as unit:
                await unit.execute(copy.format(values))


OPERATOR = Principal(Role.OPERATOR, "operator", 0.0)


async def _publish(database: Database, per_hour: str) -> PriceVersionView:
    lines = tuple(
        PriceLine(sku=f"{resource}/*/on_demand", per_hour=ExactDecimal(per_hour))
        for resource in ("device", "cpu", "memory")
    )
    async with database.begin(SYSTEM) as unit:
        return await publish_prices(unit, OPERATOR, PriceVersionSpec(lines=lines))


async def test_prices_when_published_while_something_is_rated_then_begin_after_it(
    database: Database, tenant: TenantView, doors: list[Database]
) -> None:
    rater, publisher = doors[0], doors[1]
    async with rater.begin(SYSTEM) as unit:
        await take_allocations(unit, [allocation(tenant.tenant_id)])
        publishing = asyncio.create_task(_publish(publisher, "1"), context=contextvars.Context())
        await asyncio.sleep(0.3)
        assert not publishing.done()
        moment: datetime = await unit.fetchval("SELECT clock_timestamp()")
    published = await publishing
    assert published.valid_from >= moment + timedelta(seconds=1)


async def test_close_when_something_is_being_rated_then_waits_for_it_and_takes_it_in(
    database: Database, tenant: TenantView, doors: list[Database]
) -> None:
    await take(database, allocation(tenant.tenant_id))
    async with database.begin(SYSTEM) as unit:
        await keep_up(unit, NOW)
        queued = await rows.queue_due(unit, NOW)
    async with doors[0].begin(SYSTEM) as unit:
        await take_allocations(unit, [allocation(tenant.tenant_id)])
        closing = asyncio.create_task(close_statements(doors[1], queued[0]), context=contextvars.Context())
        await asyncio.sleep(0.3)
        assert not closing.done()
    assert await closing == 3
    async with database.begin(SYSTEM) as unit:
        (first, *_) = [rows.statement_view(row) for row in await rows.list_statements(unit, None, 10, tenant.tenant_id)]
    assert first.seconds == 2 * 2 * 101


@dataclass(slots=True)
class Due:
    """The due loop beside a scheduler whose feed stands at `head`; `handed` = what it gave to the background."""

    database: Database
    handed: list[tuple[str, str]]
    head: int | None = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if self.head is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"head": self.head, "events": []})

    async def passes(self) -> list[tuple[str, str]]:
        client = ServiceClient("scheduler", "http://scheduler", "", transport=httpx.MockTransport(self.answer))

        async def enqueue(kind: str, row_id: str) -> None:
            self.handed.append((kind, row_id))

        loop = due_loop(self.database, client, enqueue, DueTimes(interval=1.0, grace=0, overdue=3600, patience=0.3))
        lease = await acquire_lease(self.database, "due", uuid4(), 0.0)
        assert loop.run_leased_pass is not None
        assert lease is not None
        self.handed.clear()
        await loop.run_leased_pass(NOW, lease)
        return list(self.handed)


async def test_fountain_503_when_metering_is_behind_or_blind_then_nothing_is_closed_and_an_alarm_raised(
    database: Database, tenant: TenantView
) -> None:
    await take(database, allocation(tenant.tenant_id))
    due = Due(database, [])
    for head in (None, 5):
        before = _alarms()
        due.head = head
        assert await due.passes() == []
        assert _alarms() == before + 1
    due.head = 0
    async with database.begin(SYSTEM) as unit:
        await unit.execute(
            "INSERT INTO dead_letter (consumer, publisher, seq, envelope, error) VALUES"
            " ('metering', 'scheduler', 1, '{}', 'x')"
        )
    assert await due.passes() == []
    async with database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE dead_letter SET replayed_at = now()")
    due.head = 7
    # A busy scheduler: what was published is applied a moment later.
    applying = asyncio.create_task(_apply_soon(database, 7))
    assert len(await due.passes()) == 3
    await applying
    assert await due.passes() == []


async def _apply_soon(database: Database, seq: int) -> None:
    await asyncio.sleep(0.1)
    async with database.begin(SYSTEM) as unit:
        await unit.execute("INSERT INTO cursor (consumer, publisher, seq) VALUES ('metering', 'scheduler', $1)", seq)


def _alarms() -> float:
    labels = {"service": "billing", "kind": "metering_incomplete"}
    return REGISTRY.get_sample_value("millpond_alarms_total", labels) or 0.0


async def test_raters_and_closers_when_all_at_once_then_every_second_is_billed_once(
    database: Database, doors: list[Database]
) -> None:
    tenants = [tenant_view() for _ in range(3)]
    async with database.begin(SYSTEM) as unit:
        for one in tenants:
            await save_tenant(unit, one)
    held = [
        allocation(
            tenants[number % 3].tenant_id,
            active_at=START + seconds(number * 3600),
            bound_at=START + seconds(number * 3600),
            released_at=START + seconds(number * 3600 + 86_400 * 12),
            cpu_milli=1000,
            memory_mib=0,
        )
        for number in range(30)
    ]
    for early in held[::2]:
        await take(database, states_of(early)[1])

    async def close(door: Database) -> None:
        for _ in range(3):
            async with door.begin(SYSTEM) as unit:
                await keep_up(unit, NOW)
                queued = await rows.queue_due(unit, NOW)
            for key in queued:
                await close_statements(door, key)

    async def deliver(door: Database, seed: int) -> None:
        chance = random.Random(seed)
        for one in chance.sample(held, len(held)):
            await take(door, one)

    await asyncio.gather(deliver(doors[0], 0), deliver(doors[1], 1), close(doors[2]), close(doors[3]))
    await close(doors[0])
    total = 0
    async with database.begin(SYSTEM) as unit:
        for one in tenants:
            views = [rows.statement_view(row) for row in await rows.list_statements(unit, None, 99, one.tenant_id)]
            total += sum(view.seconds for view in views)
            period = await find_period(unit, one, None, NOW + timedelta(days=2))
            total += (await draft_statement(unit, one, period, NOW + timedelta(days=2))).seconds
        unbilled = await unit.fetchval(
            "SELECT count(*) FROM adjustment a JOIN statement s ON s.tenant_id = a.tenant_id"
            " AND s.period_start = a.period_start WHERE s.state = 'closed' AND a.posted_at > s.closed_at"
        )
    assert total == 30 * 86_400 * 12
    assert unbilled == 0
