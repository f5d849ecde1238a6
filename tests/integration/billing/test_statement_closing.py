"""Statements are closed once, in order, with gapless numbers, and never change; what comes later is an adjustment."""

import asyncio
import gc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from millpond_billing.background.work import close_statements
from millpond_billing.domain.periods import Calendar
from millpond_billing.domain.rating import Charge, RatedSegment
from millpond_billing.domain.statements import Statement, Tally
from millpond_billing.domain.timeline import instant_of
from millpond_billing.store import segments
from millpond_billing.store import statements as rows
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases import statements as usecase
from millpond_billing.usecases.bill_check import check_bill
from millpond_billing.usecases.metering import rate_waiting, take_allocations
from millpond_billing.usecases.periods import TenantPeriods, keep_periods, keep_up
from millpond_billing.usecases.statements import compute_statement
from millpond_contracts.bodies.allocations import AllocationView, EndReason
from millpond_contracts.bodies.bills import ChargeKind, StatementView
from millpond_contracts.bodies.tenants import TenantState, TenantView
from millpond_contracts.ids import StatementId, TenantId
from millpond_contracts.prices import exact_sum
from millpond_kernel.db import SYSTEM, Database
from tests.integration.billing.stage import START, allocation, seconds, share, states_of, tenant_view
from tests.waiting import eventually

pytestmark = pytest.mark.integration

# The end of February in Shanghai.
MARCH = datetime(2024, 2, 29, 16, tzinfo=UTC)
NOW = datetime(2024, 5, 10, tzinfo=UTC)


async def know(database: Database, *tenants: TenantView) -> None:
    async with database.begin(SYSTEM) as unit:
        for tenant in tenants:
            await save_tenant(unit, tenant)


async def take(database: Database, *states: AllocationView) -> None:
    async with database.begin(SYSTEM) as unit:
        await take_allocations(unit, states)


async def queue(database: Database, now: datetime = NOW) -> list[StatementId]:
    async with database.begin(SYSTEM) as unit:
        await keep_up(unit, now)
        return await rows.queue_due(unit, now)


async def closed(database: Database, tenant_id: TenantId) -> list[StatementView]:
    async with database.begin(SYSTEM) as unit:
        found = [rows.statement_view(row) for row in await rows.list_statements(unit, None, 1000, tenant_id)]
    return sorted(found, key=lambda one: one.period_start)


async def close_all(database: Database, now: datetime = NOW) -> None:
    for statement_id in await queue(database, now):
        await close_statements(database, statement_id)


def exact_lines(view: StatementView) -> Decimal:
    return exact_sum(money.amount for kind, money in view.subtotals.items() if kind is not ChargeKind.ROUNDING)


async def test_cf_abacus_88_when_an_allocation_runs_for_months_then_every_period_has_its_slice(
    database: Database,
) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    states = states_of(allocation(tenant.tenant_id, active_at=START, released_at=datetime(2024, 5, 1, tzinfo=UTC)))
    await take(database, states[1])
    await close_all(database)
    found = await closed(database, tenant.tenant_id)
    assert [view.seconds for view in found] == [
        2 * int((MARCH - START).total_seconds()),
        2 * 31 * 86_400,
        2 * 30 * 86_400,
    ]
    await take(database, states[2])
    period = Calendar.of(tenant.timezone).period_at(instant_of(datetime(2024, 5, 1, tzinfo=UTC)))
    async with database.begin(SYSTEM) as unit:
        may = await compute_statement(unit, tenant.tenant_id, period, NOW)
        april = await check_bill(unit, tenant.tenant_id, found[2].period_start, NOW)
    assert may[0].seconds == 2 * 8 * 3600
    assert april.difference.amount == 0


async def test_close_when_many_workers_run_the_same_then_numbers_have_no_gap_and_digests_chain(
    database: Database,
) -> None:
    tenants = [tenant_view() for _ in range(4)]
    await know(database, *tenants)
    for tenant in tenants:
        await take(database, allocation(tenant.tenant_id))
    queued = await queue(database)
    # Every message three times, all at once.
    await asyncio.gather(*(close_statements(database, key) for key in [*queued, *queued, *queued]))
    for key in queued:
        await close_statements(database, key)
    found = [view for tenant in tenants for view in await closed(database, tenant.tenant_id)]
    assert sorted(view.number or 0 for view in found) == list(range(1, 13))
    for tenant in tenants:
        digests = [view.digest for view in await closed(database, tenant.tenant_id)]
        assert len(set(digests)) == 3
    async with database.begin(SYSTEM) as unit:
        events = await unit.fetchval("SELECT count(*) FROM outbox WHERE type = 'billing.statement_closed.v1'")
    assert events == 12


class Interrupted(Exception):
    """A process that dies at this step."""


@pytest.mark.parametrize("step", ["list_running", "list_written", "previous_digest", "next_number", "save_closed"])
async def test_close_when_interrupted_at_a_step_then_nothing_happened_and_the_next_run_closes(
    database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    await take(database, allocation(tenant.tenant_id), states_of(allocation(tenant.tenant_id))[1])
    queued = await queue(database, datetime(2024, 3, 10, tzinfo=UTC))

    def die(*_: object) -> None:
        raise Interrupted

    owner: Any = {"list_running": usecase, "list_written": segments}.get(step, rows)
    with monkeypatch.context() as patched:
        patched.setattr(owner, step, die)
        with pytest.raises(Interrupted):
            await close_statements(database, queued[0])
    assert await closed(database, tenant.tenant_id) == []
    assert await close_statements(database, queued[0]) == 1
    assert [view.number for view in await closed(database, tenant.tenant_id)] == [1]


async def test_close_when_a_period_is_long_then_is_read_in_batches_and_always_in_one_order(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "BATCH", 50)
    tenant = tenant_view()
    await know(database, tenant)
    held = [allocation(tenant.tenant_id, devices=(share(),)) for _ in range(200)]
    await take(database, *held)
    add, kept, told = Tally.add, [], []

    def add_and_count(tally: Tally, charge: Charge) -> None:
        add(tally, charge)
        segment = charge.rated.segment
        told.append((segment.start, segment.allocation_id, str(segment.sku)))
        if tally.count % 100 == 0:
            kept.append(count_kept())

    def count_kept() -> int:
        return sum(isinstance(one, asyncpg.Record | RatedSegment) for one in gc.get_objects())

    monkeypatch.setattr(Tally, "add", add_and_count)
    gc.collect()
    before = count_kept()
    await close_all(database, datetime(2024, 3, 10, tzinfo=UTC))
    (view,) = await closed(database, tenant.tenant_id)
    assert (view.seconds, view.lines) == (200 * 3 * 101, len(told))
    assert told == sorted(told)
    assert len(kept) >= 10
    assert max(kept) - before < 200, "of 600"


async def test_rows_when_closed_or_written_then_the_database_refuses_every_change(database: Database) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    await take(database, allocation(tenant.tenant_id))
    await close_all(database)
    for change in (
        "UPDATE statement SET digest = 'x'",
        "DELETE FROM statement",
        "UPDATE segment SET usage = usage + 1",
        "DELETE FROM segment",
        "UPDATE price_version SET minimum_seconds = 0",
        "UPDATE price_version SET lines = '[]'",
        "DELETE FROM price_version",
    ):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            async with database.begin(SYSTEM) as unit:
                await unit.execute(change)


async def test_killbill_876_when_facts_come_after_the_close_then_the_difference_is_adjusted_once(
    database: Database,
) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    # Ran over the end of February as far as anybody knew; its end lay before it. And one that nobody knew at all.
    lost = states_of(
        allocation(
            tenant.tenant_id,
            active_at=MARCH - seconds(7200),
            bound_at=MARCH - seconds(7200),
            released_at=MARCH - seconds(3600),
            reason=EndReason.NODE_LOST,
        )
    )
    unknown = allocation(
        tenant.tenant_id,
        bound_at=MARCH - seconds(600),
        active_at=MARCH - seconds(600),
        released_at=MARCH + seconds(600),
    )
    await take(database, lost[1])
    march = datetime(2024, 3, 10, tzinfo=UTC)
    await close_all(database, march)
    (february,) = await closed(database, tenant.tenant_id)
    assert exact_lines(february) == exact_sum([_price(7200)])

    for _ in range(2):
        await take(database, lost[2], unknown, lost[2].model_copy(update={"generation": 9}))
    await close_all(database, datetime(2024, 4, 10, tzinfo=UTC))
    again, second = await closed(database, tenant.tenant_id)
    assert again == february
    assert second.subtotals[ChargeKind.ADJUSTMENT].amount == _price(-3600 + 600)
    assert exact_lines(february) + exact_lines(second) == _price(3600 + 1200)
    async with database.begin(SYSTEM) as unit:
        for view in (february, second):
            check = await check_bill(unit, tenant.tenant_id, view.period_start, NOW)
            assert check.difference.amount == 0
        count = await unit.fetchval("SELECT count(*) FROM adjustment")
    assert count == 4


def _price(count: int) -> Decimal:
    """So many seconds of two cores and 4 GiB, at the example's unit prices."""
    return count * (2000 * Decimal("0.18") / 3_600_000 + 4096 * Decimal("0.018") / 3_686_400)


async def test_release_when_told_again_with_another_end_then_the_segment_stays_and_the_rest_is_adjusted(
    database: Database,
) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    held = allocation(tenant.tenant_id)
    await take(database, held)
    later = held.model_copy(update={"released_at": START + seconds(201), "generation": 4})
    await take(database, later)
    await take(database, later)
    async with database.begin(SYSTEM) as unit:
        statement, _ = await compute_statement(unit, tenant.tenant_id, _february(tenant), NOW)
        ends = await unit.fetch("SELECT DISTINCT end_at FROM segment")
    assert [row["end_at"] for row in ends] == [held.released_at]
    assert _exact(statement) == _price(200)


def _february(tenant: TenantView) -> Any:
    return Calendar.of(tenant.timezone).period_at(instant_of(START))


def _exact(statement: Statement) -> Decimal:
    return exact_sum(line.amount for line in statement.lines if line.kind is not ChargeKind.ROUNDING)


async def test_adjustment_when_its_cause_is_told_away_again_then_taken_back(database: Database) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    await take(database, allocation(tenant.tenant_id))
    await close_all(database, datetime(2024, 3, 10, tzinfo=UTC))
    early = allocation(tenant.tenant_id, active_at=MARCH - seconds(600), bound_at=MARCH - seconds(600))
    late = {"bound_at": MARCH + seconds(60), "active_at": MARCH + seconds(60), "released_at": MARCH + seconds(660)}
    await take(database, early.model_copy(update={"released_at": MARCH - seconds(300)}))
    await take(database, early.model_copy(update={**late, "generation": 4}))
    await close_all(database, datetime(2024, 4, 10, tzinfo=UTC))
    first, second = await closed(database, tenant.tenant_id)
    assert exact_lines(first) + exact_lines(second) == _price(101 + 600)
    assert second.subtotals[ChargeKind.ADJUSTMENT].amount == 0


async def test_release_when_tenant_or_price_is_unknown_then_waits_and_blocks_the_close(database: Database) -> None:
    tenant = tenant_view()
    held = allocation(tenant.tenant_id)
    odd = allocation(tenant.tenant_id, term="reserved")
    await take(database, held)
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT count(*) FROM segment") == 0
        assert await rate_waiting(unit) == 0
    await know(database, tenant)
    async with database.begin(SYSTEM) as unit:
        assert await rate_waiting(unit) == 1
        assert await rate_waiting(unit) == 0
        assert await unit.fetchval("SELECT count(*) FROM segment") == 2
    await take(database, odd)
    queued = await queue(database)
    assert await close_statements(database, queued[0]) == 0
    assert await closed(database, tenant.tenant_id) == []


async def test_b2_tenant_of_another_zone_when_runs_lie_around_its_midnight_then_one_statement_for_each_period(
    database: Database,
) -> None:
    tenant = tenant_view(timezone="Europe/Paris", created_at=datetime(2024, 3, 1, tzinfo=UTC))
    await know(database, tenant)
    # The last evening of April in UTC; in Paris the second one is May already.
    for hour in (20, 23):
        begin = datetime(2024, 4, 30, hour, tzinfo=UTC)
        await take(
            database,
            allocation(tenant.tenant_id, bound_at=begin, active_at=begin, released_at=begin + seconds(100)),
        )
    for _ in range(2):
        await close_all(database)
    found = await closed(database, tenant.tenant_id)
    (april,) = [view for view in found if view.period_end == datetime(2024, 4, 30, 22, tzinfo=UTC)]
    assert april.seconds == 2 * 100  # CPU and memory of the first run alone
    assert len({view.period_start for view in found}) == len(found)
    await close_all(database, datetime(2024, 6, 10, tzinfo=UTC))
    may = (await closed(database, tenant.tenant_id))[-1]
    assert (may.period_start, may.seconds) == (april.period_end, 2 * 100)
    # The clocks of Paris went forward on the last day of March.
    march = Calendar.of("Europe/Paris").period_at(instant_of(datetime(2024, 3, 15, tzinfo=UTC)))
    assert march.end - march.start == instant_of(START + seconds(743 * 3600)) - instant_of(START)


async def test_zone_when_changed_then_counts_from_the_next_period_on(database: Database) -> None:
    tenant = tenant_view(timezone="Asia/Shanghai")
    await know(database, tenant)
    await take(database, states_of(allocation(tenant.tenant_id))[1])
    async with database.begin(SYSTEM) as unit:
        await keep_up(unit, START + seconds(60))
    await know(database, tenant.model_copy(update={"timezone": "America/New_York", "generation": 2}))
    await close_all(database)
    found = await closed(database, tenant.tenant_id)
    assert [view.period_start for view in found[1:]] == [view.period_end for view in found[:-1]]
    assert found[0].period_end == MARCH
    assert found[0].timezone == "Asia/Shanghai"
    # What would be a period of hours joins the next month; then months of New York.
    assert found[1].period_end == datetime(2024, 4, 1, 4, tzinfo=UTC)
    assert found[1].timezone == "America/New_York"
    assert sum(view.seconds for view in found) == 2 * int((found[-1].period_end - START).total_seconds() - 1)


async def test_tenant_when_deleted_then_its_last_statement_still_comes_and_no_further(database: Database) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    await take(database, allocation(tenant.tenant_id))
    await know(database, tenant.model_copy(update={"state": TenantState.DELETED, "generation": 2}))
    await close_all(database)
    (last,) = await closed(database, tenant.tenant_id)
    assert last.period_end == MARCH
    assert last.total.amount > 0


async def test_devices_when_eight_are_held_over_a_close_then_all_are_billed_exactly(database: Database) -> None:
    tenant = tenant_view()
    await know(database, tenant)
    held = allocation(
        tenant.tenant_id,
        cpu_milli=0,
        memory_mib=0,
        devices=tuple(share() for _ in range(8)),
        active_at=MARCH - seconds(0.3),
        bound_at=MARCH - seconds(0.5),
        released_at=MARCH + seconds(3600.2),
    )
    for state in states_of(held)[:2]:
        await take(database, state)
    await close_all(database, datetime(2024, 3, 10, tzinfo=UTC))
    await take(database, held)
    await close_all(database, datetime(2024, 4, 10, tzinfo=UTC))
    found = await closed(database, tenant.tenant_id)
    # 3600.5 s are 3601 whole ones; the first begins before the month does.
    assert [view.seconds for view in found] == [1, 3600]
    assert exact_sum(exact_lines(view) for view in found) == 3601 * 8000 * Decimal("9") / 3_600_000


async def test_periods_when_two_miss_the_same_ones_then_the_second_waits_and_takes_those_of_the_first(
    database: Database,
) -> None:
    # In this order, and in the other, PostgreSQL called two inserts that met in the constraint on overlap a deadlock.
    tenants = [tenant_view() for _ in range(2)]
    await know(database, *tenants)

    async def keep(order: list[TenantView], go_on: asyncio.Event) -> dict[TenantId, TenantPeriods]:
        async with database.begin(SYSTEM) as unit:
            wanted = {one.tenant_id: (one, instant_of(START), instant_of(NOW)) for one in order}
            kept = await keep_periods(unit, wanted)
            await go_on.wait()
        return kept

    first_may, second_may = asyncio.Event(), asyncio.Event()
    second_may.set()
    first = asyncio.create_task(keep(tenants, first_may))
    await eventually(lambda: _holds_periods(database))
    second = asyncio.create_task(keep(tenants[::-1], second_may))
    await eventually(lambda: _waits_for_periods(database))
    first_may.set()
    assert await first == await second
    async with database.begin(SYSTEM) as unit:
        kept = await rows.list_periods(unit, [one.tenant_id for one in tenants], instant_of(START))
    assert {tenant_id: tuple(row.period for row in found) for tenant_id, found in kept.items()} == {
        tenant_id: found.periods for tenant_id, found in first.result().items()
    }


async def _holds_periods(database: Database) -> bool:
    return await _advisory_locks(database, granted=True) == 2


async def _waits_for_periods(database: Database) -> bool:
    return await _advisory_locks(database, granted=False) == 1


async def _advisory_locks(database: Database, *, granted: bool) -> int:
    async with database.begin(SYSTEM) as unit:
        return int(
            await unit.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = $1"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                granted,
            )
        )
