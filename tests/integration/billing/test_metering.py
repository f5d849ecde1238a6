"""From allocation events to a statement: real tables, real constraints, figures to the last digit."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from millpond_billing.store.segments import WrittenRange, list_written
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases.metering import take_allocations
from millpond_billing.usecases.periods import find_period
from millpond_billing.usecases.prices import ensure_example_prices
from millpond_billing.usecases.statements import draft_statement
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.bodies.jobs import AllocationState, AllocationView, EndReason
from millpond_contracts.bodies.tenants import TenantState, TenantView
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, TaskId, TenantId, VirtualPoolId
from millpond_kernel.db import SYSTEM
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration

START = datetime(2026, 11, 3, 8, 0, 0, tzinfo=UTC)


def allocation(tenant_id: TenantId, **changes: object) -> AllocationView:
    fields: dict[str, object] = {
        "allocation_id": AllocationId.new(),
        "job_id": JobId.new(),
        "job_name": "train",
        "task_id": TaskId.new(),
        "group": "main",
        "index": 0,
        "attempt": 1,
        "tenant_id": tenant_id,
        "project_id": None,
        "virtual_pool_id": VirtualPoolId.new(),
        "pool_id": PoolId.new(),
        "node_id": NodeId.new(),
        "cpu_milli": 2000,
        "memory_mib": 4096,
        "devices": (),
        "price_version_id": None,
        "state": AllocationState.RELEASED,
        "epoch": 1,
        "bound_at": START,
        "active_at": START + timedelta(seconds=1),
        "released_at": START + timedelta(seconds=101, microseconds=250_000),
        "reason": EndReason.COMPLETED,
        "generation": 3,
    }
    return AllocationView.model_validate(fields | changes)


async def test_released_allocation_when_noted_twice_then_billed_once(migrated: MigratedDatabase) -> None:
    tenant = TenantView(
        tenant_id=TenantId.new(),
        name="acme",
        timezone="Asia/Shanghai",
        currency="CNY",
        state=TenantState.ACTIVE,
        labels={},
        created_at=START,
        generation=1,
    )
    database = migrated.database("billing")
    await database.open()
    try:
        held = allocation(tenant.tenant_id)
        async with database.begin(SYSTEM) as unit:
            await ensure_example_prices(unit)
            await save_tenant(unit, tenant)
            for _ in range(2):
                await take_allocations(unit, [held])
            period = await find_period(unit, tenant, None, START)
            statement = await draft_statement(unit, tenant, period, START + timedelta(hours=1))
            written = await list_written(unit, WrittenRange(tenant.tenant_id, period.start, period.end))
        # 100.25 s of active time are 101 whole seconds; 2 cores at 0.18 and 4 GiB at 0.018 an hour.
        expected = Decimal(101) / 3600 * (2 * Decimal("0.18") + 4 * Decimal("0.018"))
        assert [one.segment.seconds for one in written] == [101, 101]
        assert statement.total.amount == round(expected, 2)
        lines = sum(money.amount for money in statement.subtotals.values())
        assert lines == statement.total.amount
        assert ChargeKind.ROUND_UP in statement.subtotals
    finally:
        await database.close()
