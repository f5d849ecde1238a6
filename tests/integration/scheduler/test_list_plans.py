"""Filters of long lists find their rows by an index, also behind row-level security."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from millpond_contracts.bodies.jobs import JobState
from millpond_contracts.ids import TenantId
from millpond_kernel.db import Database, Scope, SystemScope, TenantScope
from millpond_kernel.filters import Span, Where
from millpond_scheduler.store.jobs import JobFilter
from tests.integration.databases import MigratedDatabase
from tests.integration.kernel.stage import run_as_owner

pytestmark = pytest.mark.integration

TENANT = TenantId(int=1 << 64)
# A job a minute for two weeks, of which one in 500 has not ended, and an audit row for each.
_MANY = f"""
INSERT INTO scheduler.job (id, tenant_id, virtual_pool_id, pool_id, name, kind, priority, labels, spec, state,
    created_at, generation)
SELECT (lpad(to_hex((extract(epoch FROM now() - n * interval '1 minute') * 1000)::bigint), 12, '0')
    || '70008000' || lpad(to_hex(n), 12, '0'))::uuid, '{UUID(int=TENANT.int)}', '{UUID(int=2)}', '{UUID(int=3)}',
    'job-' || n, 'batch', 50, '{{}}', '{{}}', CASE WHEN n % 500 = 0 THEN 'running' ELSE 'succeeded' END,
    now() - n * interval '1 minute', 1
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduler.audit (at, actor, role, tenant_id, action, object)
SELECT now() - (20001 - n) * interval '1 minute', 'member:key-' || n % 400, 'member', '{UUID(int=TENANT.int)}',
    'job.submit', 'job-' || n
FROM generate_series(1, 20000) AS n;
ANALYZE scheduler.job;
ANALYZE scheduler.audit;
"""


@pytest.fixture
async def many(migrated: MigratedDatabase) -> AsyncIterator[Database]:
    await run_as_owner(migrated, _MANY)
    async with migrated.opened("scheduler") as database:
        yield database


async def plan(database: Database, scope: Scope, table: str, where: Where) -> str:
    """How PostgreSQL would read the first page."""
    async with database.begin(scope) as unit:
        statement = f"EXPLAIN SELECT id FROM {table}{where.text()} ORDER BY id DESC LIMIT {where.value(51)}"
        return "\n".join(row["QUERY PLAN"] for row in await unit.fetch(statement, *where.arguments))


async def test_jobs_when_listed_by_an_unfinished_state_then_the_ended_are_not_read(many: Database) -> None:
    found = await plan(many, TenantScope(TENANT), "job", JobFilter(states=(JobState.RUNNING,)).where())
    assert "job_unfinished" in found, found


@pytest.mark.parametrize("scope", [TenantScope(TENANT), SystemScope()], ids=["tenant", "operator"])
async def test_jobs_when_listed_by_time_then_older_ones_are_not_read(many: Database, scope: Scope) -> None:
    since = datetime.now(UTC) - timedelta(hours=1)
    found = await plan(many, scope, "job", JobFilter(created=Span(since, None)).where())
    conditions = [line for line in found.splitlines() if "Index Cond" in line]
    assert any("id >=" in line for line in conditions), found


async def test_audit_when_listed_by_object_actor_or_time_then_by_an_index(many: Database) -> None:
    by_object, by_actor, by_time = Where(), Where(), Where()
    by_object.add("object = {}", "job-77")
    by_actor.add("actor = ANY({}::text[])", ["member:key-7"])
    by_time.within("at", Span(None, datetime.now(UTC) - timedelta(days=13, hours=20)))
    plans = [await plan(many, TenantScope(TENANT), "audit", where) for where in (by_object, by_actor, by_time)]
    wanted = ("audit_object", "audit_actor", "audit_at")
    assert [name for name, found in zip(wanted, plans, strict=True) if name not in found] == [], "\n\n".join(plans)
