"""Whether the views are as new as their publishers, and what nodes hold: asked only before a pool shrinks."""

from collections.abc import Mapping

from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.ids import NodeId, PoolId
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.streams import FeedGone, read_cursor, read_feed, read_snapshot

# Under load a view is always a few events behind; more than this says that nobody applies them.
MOST_EVENTS_BEHIND = 500


async def why_behind(
    database: Database, clients: Mapping[str, ServiceClient], consumers: Mapping[str, str]
) -> str | None:
    """Why a view may be old; None when each consumer follows its publisher, which answers.

    Args:
        consumers: publisher -> the consumer that follows it.
    """
    for publisher, consumer in consumers.items():
        try:
            head, _ = await read_feed(clients[publisher], publisher, -1)
        except (ServiceAway, FeedGone) as error:
            return f"{publisher} does not answer: {error}"
        async with database.begin(SYSTEM) as unit:
            applied = await read_cursor(unit, consumer, publisher)
        if head - applied > MOST_EVENTS_BEHIND:
            return f"{publisher} is at {head}, known up to {applied}"
    return None


async def read_held(scheduler: ServiceClient, pool_id: PoolId) -> dict[NodeId, int]:
    """Device milli that live allocations hold, by node of the pool; an allocation without devices counts as one.

    Raises:
        ServiceAway: the scheduler does not answer.
    """
    held: dict[NodeId, int] = {}
    async for _, items in read_snapshot(scheduler, "scheduler", "live-allocations"):
        for item in items:
            one = AllocationView.model_validate(item)
            if one.pool_id == pool_id:
                milli = sum(share.milli for share in one.devices)
                held[one.node_id] = held.get(one.node_id, 0) + max(1, milli)
    return held
