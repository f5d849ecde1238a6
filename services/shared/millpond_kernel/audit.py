"""Audit rows: who did what, with the object before and after, in the transaction of the change.

The relay numbers them and chains them by hash, so that a change or a missing row afterwards can be found.
"""

import hashlib
import json
import re
from typing import Any

import asyncpg
from pydantic import BaseModel

from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import AuditEntry, UnitOfWork

CHAIN_BATCH = 500
# Never written down, whatever object holds them.
_SECRET_FIELDS = {"secret", "token", "command", "env", "spec"}
_NAMES_SECRET = re.compile(f'"({"|".join(sorted(_SECRET_FIELDS))})"')


def audit(
    unit: UnitOfWork,
    caller: Principal,
    action: str,
    target: str,
    *,
    before: BaseModel | None = None,
    after: BaseModel | str | None = None,
) -> None:
    """Records a change of `target` by `caller`; secrets, commands and environments are left out.

    Args:
        after: a model, or one that was written as JSON already.
    """
    unit.record(
        AuditEntry(
            actor=caller.subject,
            role=caller.role.value,
            tenant_id=caller.tenant_id,
            action=action,
            object=target,
            before=None if before is None else _shown(before),
            after=None if after is None else _shown(after),
        )
    )


def _shown(model: BaseModel | str) -> str:
    text = model if isinstance(model, str) else model.model_dump_json()
    return json.dumps(_without_secrets(json.loads(text))) if _NAMES_SECRET.search(text) else text


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(inner) for name, inner in value.items() if name not in _SECRET_FIELDS}
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def audit_hash(previous: bytes, row: dict[str, Any]) -> bytes:
    """The hash of an audit row: SHA-256 over the previous row's hash and the row as canonical JSON."""
    canonical = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(previous + canonical.encode()).digest()


def audit_fields(row: asyncpg.Record) -> dict[str, Any]:
    """The fields of an audit row that its hash covers."""
    return {
        "seq": row["seq"],
        "at": row["at"].isoformat(),
        "actor": row["actor"],
        "role": row["role"],
        "tenant_id": None if row["tenant_id"] is None else str(row["tenant_id"]),
        "action": row["action"],
        "object": row["object"],
        "before": row["before"],
        "after": row["after"],
        "request_id": row["request_id"],
    }


async def chain_audit(unit: UnitOfWork) -> int:
    """Numbers and chains audit rows that have no hash yet, at most one batch; how many.

    The caller holds the lock on the outbox counter, so no two relays chain at once.
    """
    rows = await unit.fetch(
        "SELECT a.id, c.last + row_number() OVER (ORDER BY a.id) AS seq, a.at, a.actor, a.role, a.tenant_id, a.action,"
        " a.object, a.before, a.after, a.request_id, (SELECT hash FROM audit WHERE seq = c.last) AS previous"
        " FROM audit a, (SELECT last FROM outbox_counter WHERE name = 'audit') AS c"
        " WHERE a.seq IS NULL ORDER BY a.id LIMIT $1",
        CHAIN_BATCH,
    )
    if not rows:
        return 0
    previous = rows[0]["previous"] or b""
    hashes = []
    for row in rows:
        previous = audit_hash(previous, audit_fields(row))
        hashes.append(previous)
    await unit.execute(
        "WITH moved AS (UPDATE outbox_counter SET last = $4 WHERE name = 'audit')"
        " UPDATE audit a SET seq = n.seq, hash = n.hash FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])"
        " AS n(id, seq, hash) WHERE a.id = n.id",
        [row["id"] for row in rows],
        [row["seq"] for row in rows],
        hashes,
        rows[-1]["seq"],
    )
    return len(rows)
