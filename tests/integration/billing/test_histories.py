"""Random histories through the real tables and the API equal the reference model, in any order and delivered twice."""

import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from millpond_billing.background.work import close_statements
from millpond_billing.store import statements as rows
from millpond_billing.store.prices import insert_price_version
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases.metering import take_allocations
from millpond_billing.usecases.periods import keep_up
from millpond_contracts.bodies.allocations import AllocationView, EndReason
from millpond_contracts.ids import AllocationId, DeviceId, TenantId
from millpond_kernel.db import SYSTEM, Database
from tests.factories.billing import CPU, GPU, MEMORY, SECOND, book_of, named
from tests.integration.billing.stage import allocation, share, states_of, tenant_view
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, run_services
from tests.reference import billing_model

pytestmark = pytest.mark.integration

HISTORIES = 30
ZONE = "Asia/Shanghai"
# Three boundaries of periods; everything happens around the middle one.
STARTS = tuple(datetime(2024, month, day, 16, tzinfo=UTC) for month, day in ((1, 31), (2, 29), (3, 31)))
BOUNDARIES = [round(start.timestamp()) * SECOND for start in STARTS]
PRICED = (GPU, CPU, MEMORY, "device/*/on_demand")
_ROWS = ("segment", "adjustment", "allocation_view", "price_version", "statement", "tenant_view", "outbox", "anomaly")


def make_history(chance: random.Random) -> list[dict[str, Any]]:
    """Prices of the list and of a tenant, and up to six allocations around the boundary."""
    first = {sku: _unit_price(chance) for sku in PRICED}
    history = [_price("v0", None, 0, first, chance.choice([0, 60]))]
    for number in range(chance.randint(0, 3)):
        scope = chance.choice([None, "t1"])
        changed = {sku: _unit_price(chance) for sku in chance.sample(PRICED, chance.randint(1, 4))}
        prices = first | changed if scope is None else changed
        history.append(_price(f"v{number + 1}", scope, _instant(chance) + number, prices, chance.choice([0, 45, 60])))
    for number in range(chance.randint(1, 6)):
        history += _life(chance, f"a{number}")
    return history


def _unit_price(chance: random.Random) -> str:
    return str(Decimal(chance.randint(0, 10**18)).scaleb(-18))


def _instant(chance: random.Random) -> int:
    offset = chance.randint(-300 * SECOND, 200 * SECOND)
    return BOUNDARIES[1] + (offset if chance.random() < 0.5 else offset // SECOND * SECOND)


def _price(version: str, tenant: str | None, at: int, prices: dict[str, str], minimum: int) -> dict[str, Any]:
    return {
        "type": "price",
        "version": version,
        "tenant": tenant,
        "at": at,
        "minimum_seconds": minimum,
        "unit_prices": prices,
    }


def _life(chance: random.Random, name: str) -> list[dict[str, Any]]:
    at = _instant(chance)
    amounts = {sku: chance.randint(1, 20_000) for sku in chance.sample((GPU, CPU, MEMORY), chance.randint(1, 3))}
    amounts = {sku: min(amount, 1000) if sku == GPU else amount for sku, amount in amounts.items()}
    tenant = chance.choice(["t1", "t2"])
    events: list[dict[str, Any]] = [{"type": "bound", "tenant": tenant, "at": at, "amounts": amounts}]
    for kind, odds in (("activated", 0.9), ("provider_stop_requested", 0.25), ("released", 0.8)):
        # Now and then a clock is set back.
        at += chance.randint(0, 150 * SECOND) if chance.random() < 0.9 else -chance.randint(0, 3 * SECOND)
        if chance.random() < odds:
            events.append({"type": kind, "at": at})
    if events[-1]["type"] == "released":
        events[-1]["provider_fault"] = chance.random() < 0.3
    return [{"allocation": name, **event} for event in events]


def allocation_states(history: Sequence[dict[str, Any]]) -> list[AllocationView]:
    """Every state of every allocation of a history."""
    found: list[AllocationView] = []
    for name in sorted({event["allocation"] for event in history if event["type"] != "price"}):
        told = {event["type"]: event for event in history if event.get("allocation") == name}
        bound, released = told["bound"], told.get("released")
        devices = (share(bound["amounts"][GPU], device_id=named(DeviceId, name)),) if GPU in bound["amounts"] else ()
        last = allocation(
            named(TenantId, bound["tenant"]),
            allocation_id=named(AllocationId, name),
            cpu_milli=bound["amounts"].get(CPU, 0),
            memory_mib=bound["amounts"].get(MEMORY, 0),
            devices=devices,
            bound_at=_moment(bound),
            active_at=_moment(told.get("activated")),
            waived_from=_moment(told.get("provider_stop_requested")),
            released_at=_moment(released),
            reason=EndReason.NODE_LOST if released and released["provider_fault"] else EndReason.COMPLETED,
        )
        found += states_of(last)
    return found


def _moment(event: dict[str, Any] | None) -> datetime | None:
    if event is None:
        return None
    whole, rest = divmod(event["at"], SECOND)
    return datetime.fromtimestamp(whole, UTC).replace(microsecond=rest)


@pytest.fixture
async def api(migrated: MigratedDatabase) -> AsyncIterator[Caller]:
    async with run_services(migrated, ["quota", "billing"], workers=False) as services:
        yield services.as_key()


async def _begin(migrated: MigratedDatabase, database: Database, history: Sequence[dict[str, Any]]) -> None:
    """Empties the tables and publishes the history's prices."""
    connection = await asyncpg.connect(migrated.owner_url.rsplit("/", 1)[0] + f"/{migrated.name}")
    await connection.execute(f"TRUNCATE {', '.join(f'billing.{table}' for table in _ROWS)}")
    await connection.execute("UPDATE billing.statement_counter SET last = 0")
    await connection.close()
    async with database.begin(SYSTEM) as unit:
        for version in book_of(history).versions:
            await insert_price_version(unit, version, "")
        for name in ("t1", "t2"):
            await save_tenant(unit, tenant_view(tenant_id=named(TenantId, name), timezone=ZONE))


async def _deliver(database: Database, chance: random.Random, states: Sequence[AllocationView]) -> None:
    """All states at least once, many twice, in any order and in batches of any size."""
    delivered = [*states, *chance.sample(states, len(states) // 2)]
    chance.shuffle(delivered)
    while delivered:
        size = chance.randint(1, 6)
        async with database.begin(SYSTEM) as unit:
            await take_allocations(unit, delivered[:size])
        del delivered[:size]


async def _statement(api: Caller, tenant: str, start: datetime) -> dict[str, Any] | None:
    """The statement of a period as the API tells it; none for a tenant that had no period then."""
    path = f"/v1/statements/current?tenant_id={named(TenantId, tenant)}&period_start={start.isoformat()[:-6]}Z"
    answer = await api("GET", path)
    if answer.status_code == 422:
        assert answer.json()["code"] == "billing.statement.period"
        return None
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _sums(bill: billing_model.Bill) -> dict[str, Fraction]:
    sums: dict[str, Fraction] = {}
    for (kind, _), amount in bill.amounts.items():
        sums[kind] = sums.get(kind, Fraction(0)) + amount
    return sums


def assert_statement_equals(statement: dict[str, Any] | None, bill: billing_model.Bill, note: str) -> None:
    expected = _sums(bill)
    found = {} if statement is None else statement["subtotals"]
    for kind in expected.keys() | found.keys():
        amount = Fraction(found[kind]["amount"]) if kind in found else Fraction(0)
        assert amount == expected.get(kind, Fraction(0)), (note, kind)
    total = Fraction(0) if statement is None else Fraction(statement["total"]["amount"])
    assert total == bill.total, note
    assert (0 if statement is None else statement["seconds"]) == sum(bill.seconds.values()), note


async def test_statements_when_histories_are_delivered_twice_and_shuffled_then_equal_the_model(
    migrated: MigratedDatabase, database: Database, api: Caller
) -> None:
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        history = make_history(chance)
        await _begin(migrated, database, history)
        await _deliver(database, chance, allocation_states(history))
        async with database.begin(SYSTEM) as unit:
            await keep_up(unit, STARTS[2])
        for tenant in ("t1", "t2"):
            for start, end, at in zip(BOUNDARIES, BOUNDARIES[1:], STARTS, strict=False):
                statement = await _statement(api, tenant, at)
                assert_statement_equals(
                    statement, billing_model.bill(history, tenant, start, end), f"seed {seed}, {tenant}, {at}"
                )


async def test_statements_when_closed_amid_a_history_then_adjustments_make_up_for_what_came_late(
    migrated: MigratedDatabase, database: Database, api: Caller
) -> None:
    late = 0
    for seed in range(1000, 1000 + HISTORIES):
        chance = random.Random(seed)
        history = make_history(chance)
        states = allocation_states(history)
        known = chance.sample(states, len(states) // 2)
        await _begin(migrated, database, history)
        await _deliver(database, chance, known)
        for at in STARTS[1:]:
            async with database.begin(SYSTEM) as unit:
                await keep_up(unit, at)
                queued = await rows.queue_due(unit, at)
            for key in queued:
                await close_statements(database, key)
            await _deliver(database, chance, states)
        async with database.begin(SYSTEM) as unit:
            late += await unit.fetchval("SELECT count(*) FROM adjustment")
        for tenant in ("t1", "t2"):
            owed = Fraction(0)
            for start in STARTS:
                statement = await _statement(api, tenant, start)
                for kind, money in ({} if statement is None else statement["subtotals"]).items():
                    owed += 0 if kind == "rounding" else Fraction(money["amount"])
            # What still runs is owed for April too.
            exact = Fraction(0)
            for start_us, end_us in pairwise([*BOUNDARIES, BOUNDARIES[-1] + 30 * 86_400 * SECOND]):
                bill = billing_model.bill(history, tenant, start_us, end_us)
                exact += sum((amount for kind, amount in _sums(bill).items() if kind != "rounding"), Fraction(0))
            assert owed == exact, f"seed {seed}, {tenant}"
    assert late > HISTORIES
