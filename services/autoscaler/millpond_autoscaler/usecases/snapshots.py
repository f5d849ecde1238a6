"""The present state for other services that are new or too far behind: scaling policies, in pages by id."""

from typing import Any
from uuid import UUID

from millpond_autoscaler.store.policies import list_policies, policy_view
from millpond_kernel.pagination import snapshot_position
from millpond_kernel.uow import UnitOfWork


async def list_policy_items(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Policies that were not deleted."""
    rows = await list_policies(unit, snapshot_position(after), limit)
    items = [policy_view(row).model_dump(mode="json") for row in rows]
    return items, str(UUID(int=rows[-1]["id"].int)) if len(rows) == limit else None
