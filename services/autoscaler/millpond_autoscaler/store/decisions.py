"""SQL of scaling decisions: written once, never changed."""

from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.scaling import NodeTemplate, ScalingDecisionView, ScalingRules
from millpond_contracts.ids import PoolId, ScalingDecisionId, ScalingPolicyId
from millpond_kernel.filters import Where
from millpond_kernel.uow import UnitOfWork


def decision_view(row: asyncpg.Record) -> ScalingDecisionView:
    """The decision of a row."""
    values = dict(row)
    return ScalingDecisionView(
        scaling_decision_id=ScalingDecisionId.of(values["id"]),
        scaling_policy_id=ScalingPolicyId.of(values["policy_id"]),
        policy=values["policy"],
        pool_id=PoolId.of(values["pool_id"]),
        flavor=values["flavor"],
        decided_at=values["decided_at"],
        rule=values["rule"],
        action=values["action"],
        nodes=values["nodes"],
        code=values["code"],
        reason=values["reason"],
        load_ratio=values["load_ratio"],
        rules=ScalingRules.model_validate(values["rules"]),
        template=NodeTemplate.model_validate(values["template"]),
        inputs=values["inputs"],
    )


async def insert_decision(unit: UnitOfWork, decision: ScalingDecisionView) -> None:
    """Keeps a decision."""
    body: dict[str, Any] = decision.model_dump(mode="json")
    await unit.execute(
        "INSERT INTO scaling_decision (id, policy_id, policy, pool_id, flavor, decided_at, rule, action, nodes, code,"
        " reason, load_ratio, rules, template, inputs)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
        decision.scaling_decision_id,
        decision.scaling_policy_id,
        decision.policy,
        decision.pool_id,
        decision.flavor,
        decision.decided_at,
        decision.rule.value,
        decision.action.value,
        decision.nodes,
        decision.code,
        decision.reason,
        decision.load_ratio,
        body["rules"],
        body["template"],
        body["inputs"],
    )


async def list_decisions(
    unit: UnitOfWork,
    before: UUID | None,
    limit: int,
    *,
    policy_id: ScalingPolicyId | None = None,
    pool_id: PoolId | None = None,
) -> list[asyncpg.Record]:
    """Rows of decisions, the newest first."""
    where = Where()
    where.after("id", before, is_descending=True)
    where.add("policy_id = {}", policy_id)
    where.add("pool_id = {}", pool_id)
    return await unit.fetch(
        f"SELECT * FROM scaling_decision{where.text()} ORDER BY id DESC LIMIT {where.value(limit)}", *where.arguments
    )


async def find_decision(unit: UnitOfWork, decision_id: ScalingDecisionId) -> asyncpg.Record | None:
    """The decision's row."""
    return await unit.fetchrow("SELECT * FROM scaling_decision WHERE id = $1", decision_id)
