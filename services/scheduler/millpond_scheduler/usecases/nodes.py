"""What the registry tells of nodes and pools, taken into the views and the nodes' counters."""

from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.pools import PoolView
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import views
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.store.guards import recount_nodes


async def take_node(unit: UnitOfWork, node: NodeView) -> None:
    """Takes a node's newer description. Room that it gains or loses shows in its counters at once."""
    if not await views.write_node(unit, node):
        return
    before = await views.find_totals(unit, node)
    await views.write_guard(unit, node, is_open=node.schedulable)
    after = await views.find_totals(unit, node)
    if before is not None and before != after:
        await recount_nodes(unit, [node.node_id])
    await note_changes(unit, ChangeKind.NODE, [node.node_id])


async def take_pool(unit: UnitOfWork, pool: PoolView, *, deleted: bool = False) -> None:
    """Takes a pool's newer description."""
    if await views.write_pool(unit, pool, deleted=deleted):
        await note_changes(unit, ChangeKind.POOL, [pool.pool_id])
