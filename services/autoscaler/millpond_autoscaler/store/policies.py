"""SQL of scaling policies and of what each remembers."""

from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.scaling import NodeTemplate, ScalingPolicySpec, ScalingPolicyView, ScalingRules
from millpond_contracts.ids import PoolId, ScalingPolicyId
from millpond_kernel.filters import Where
from millpond_kernel.uow import UnitOfWork

_COLUMNS = "id, name, pool_id, flavor, template, rules, enabled, created_at, generation"


def policy_view(row: asyncpg.Record) -> ScalingPolicyView:
    """The policy of a row."""
    return ScalingPolicyView(
        scaling_policy_id=ScalingPolicyId.of(row["id"]),
        name=row["name"],
        pool_id=PoolId.of(row["pool_id"]),
        flavor=row["flavor"],
        template=NodeTemplate.model_validate(row["template"]),
        rules=ScalingRules.model_validate(row["rules"]),
        enabled=row["enabled"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def find_pool(unit: UnitOfWork, pool_id: PoolId) -> str | None:
    """The name of a pool that the registry has told of; None when there is none, or it was deleted."""
    name = await unit.fetchval("SELECT name FROM pool_view WHERE pool_id = $1 AND NOT deleted", pool_id)
    return None if name is None else str(name)


async def insert_policy(unit: UnitOfWork, policy_id: ScalingPolicyId, spec: ScalingPolicySpec) -> ScalingPolicyView:
    """The new policy with an empty memory; raises asyncpg.UniqueViolationError when name or flavor is taken."""
    row = await unit.fetchrow(
        "INSERT INTO scaling_policy (id, name, pool_id, flavor, template, rules, enabled, generation)"
        f" VALUES ($1, $2, $3, $4, $5, $6, $7, 1) RETURNING {_COLUMNS}",
        policy_id,
        spec.name,
        spec.pool_id,
        spec.flavor,
        spec.template.model_dump(mode="json"),
        spec.rules.model_dump(mode="json"),
        spec.enabled,
    )
    assert row is not None, "an insert without conflict clause returns its row"
    await unit.execute("INSERT INTO policy_state (policy_id) VALUES ($1)", policy_id)
    return policy_view(row)


async def find_policy(
    unit: UnitOfWork, policy_id: ScalingPolicyId, *, is_locked: bool = False
) -> ScalingPolicyView | None:
    """The policy, unless it was deleted; locked until the transaction ends when asked for."""
    lock = " FOR NO KEY UPDATE" if is_locked else ""
    row = await unit.fetchrow(f"SELECT {_COLUMNS} FROM scaling_policy WHERE id = $1 AND NOT deleted{lock}", policy_id)
    return None if row is None else policy_view(row)


async def list_policies(
    unit: UnitOfWork, after: UUID | None, limit: int, *, pool_id: PoolId | None = None, name: str | None = None
) -> list[asyncpg.Record]:
    """Rows of policies by id."""
    where = Where(conditions=["NOT deleted"])
    where.after("id", after)
    where.add("pool_id = {}", pool_id)
    where.add("name = {}", name)
    return await unit.fetch(
        f"SELECT {_COLUMNS} FROM scaling_policy{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )


async def list_enabled(unit: UnitOfWork) -> list[ScalingPolicyView]:
    """Every policy in force, in the order in which those of one pool are asked."""
    rows = await unit.fetch(f"SELECT {_COLUMNS} FROM scaling_policy WHERE enabled AND NOT deleted ORDER BY pool_id, id")
    return [policy_view(row) for row in rows]


async def update_policy(unit: UnitOfWork, policy: ScalingPolicyView, spec: ScalingPolicySpec) -> ScalingPolicyView:
    """The policy as described now; raises like `insert_policy`."""
    row = await unit.fetchrow(
        "UPDATE scaling_policy SET name = $2, template = $3, rules = $4, enabled = $5, generation = generation + 1"
        f" WHERE id = $1 AND generation = $6 RETURNING {_COLUMNS}",
        policy.scaling_policy_id,
        spec.name,
        spec.template.model_dump(mode="json"),
        spec.rules.model_dump(mode="json"),
        spec.enabled,
        policy.generation,
    )
    assert row is not None, "the policy's row is locked"
    return policy_view(row)


async def delete_policy(unit: UnitOfWork, policy_id: ScalingPolicyId) -> None:
    """Marks the policy as deleted: its orders and decisions keep their name."""
    await unit.execute(
        "UPDATE scaling_policy SET deleted = true, enabled = false, generation = generation + 1 WHERE id = $1",
        policy_id,
    )


async def read_state(unit: UnitOfWork, policy_id: UUID) -> asyncpg.Record:
    """What the policy remembers."""
    row = await unit.fetchrow("SELECT * FROM policy_state WHERE policy_id = $1", policy_id)
    assert row is not None, "made with the policy"
    return row


async def write_watch(
    unit: UnitOfWork, policy_id: ScalingPolicyId, low_since: datetime | None, watched_at: datetime
) -> None:
    """Keeps since when the load is low, and that it was looked at."""
    await unit.execute(
        "UPDATE policy_state SET low_since = $2, watched_at = $3 WHERE policy_id = $1",
        policy_id,
        low_since,
        watched_at,
    )


async def note_told(unit: UnitOfWork, policy_id: ScalingPolicyId, told: str) -> None:
    """Keeps which decision was written last."""
    await unit.execute("UPDATE policy_state SET told = $2 WHERE policy_id = $1", policy_id, told)


async def note_out(unit: UnitOfWork, policy_id: ScalingPolicyId, now: datetime, count: int) -> int:
    """Notes that so many nodes were ordered; the number of the first of these orders."""
    last = await unit.fetchval(
        "UPDATE policy_state SET last_out_at = $2, low_since = NULL, orders = orders + $3 WHERE policy_id = $1"
        " RETURNING orders",
        policy_id,
        now,
        count,
    )
    return int(last) - count + 1


async def note_kept(unit: UnitOfWork, policy_id: ScalingPolicyId, now: datetime) -> None:
    """Notes that releases were called off: that is growth too."""
    await unit.execute(
        "UPDATE policy_state SET last_out_at = $2, low_since = NULL WHERE policy_id = $1", policy_id, now
    )


async def note_in(unit: UnitOfWork, policy_id: ScalingPolicyId, now: datetime) -> None:
    """Notes that nodes were released."""
    await unit.execute("UPDATE policy_state SET last_in_at = $2 WHERE policy_id = $1", policy_id, now)


async def note_failure(
    unit: UnitOfWork, policy_id: UUID, failures: int, retry_at: datetime, stock_out_until: datetime | None
) -> None:
    """Notes how often orders failed in a row, and from when on the policy may order again."""
    await unit.execute(
        "UPDATE policy_state SET failures = $2, retry_at = $3, stock_out_until = coalesce($4, stock_out_until)"
        " WHERE policy_id = $1",
        policy_id,
        failures,
        retry_at,
        stock_out_until,
    )


async def note_success(unit: UnitOfWork, policy_id: UUID) -> None:
    """Forgets earlier failures, but no stock-out: a node joined."""
    await unit.execute("UPDATE policy_state SET failures = 0, retry_at = NULL WHERE policy_id = $1", policy_id)
