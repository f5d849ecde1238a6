"""What the leader has not heard of yet: one row per changed object, written in the transaction that changed it.

The leader deletes what it reads, so neither the order of commits nor a lost doorbell can hide a change from it.
"""

from collections.abc import Iterable
from enum import StrEnum
from uuid import UUID

from millpond_kernel.uow import UnitOfWork


class ChangeKind(StrEnum):
    """What kind of object a change names."""

    POOL = "pool"
    NODE = "node"
    VIRTUAL_POOL = "virtual_pool"
    PRICE = "price"
    TASK = "task"
    ALLOCATION = "allocation"


Changes = dict[ChangeKind, set[UUID]]


async def note_changes(unit: UnitOfWork, kind: ChangeKind, ids: Iterable[UUID]) -> None:
    """Tells the leader about objects, once this transaction is durable."""
    found = list(ids)
    if found:
        await unit.execute("INSERT INTO change (kind, object_id) SELECT $1, unnest($2::uuid[])", kind.value, found)


async def take_changes(unit: UnitOfWork) -> Changes:
    """Everything noted since the last call, and forgets it."""
    rows = await unit.fetch("DELETE FROM change RETURNING kind, object_id")
    changes: Changes = {}
    for row in rows:
        changes.setdefault(ChangeKind(row["kind"]), set()).add(row["object_id"])
    return changes
