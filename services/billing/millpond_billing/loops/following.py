"""Whether metering has followed the scheduler; what decides on it must not take silence for completeness."""

import asyncio

from millpond_billing.store.cursors import METERING
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.streams import FeedGone, read_cursor, read_feed

POLL_SECONDS = 0.1


async def why_behind(database: Database, scheduler: ServiceClient, patience_seconds: float) -> str | None:
    """Why metering has not applied what the scheduler had published when this was asked; None when it has.

    Under load metering is always a few events behind, so it is given some time to reach what is published now.
    """
    try:
        head, _ = await read_feed(scheduler, "scheduler", -1)
    except (ServiceAway, FeedGone) as error:
        return f"the scheduler's feed does not answer: {error}"
    tries = round(patience_seconds / POLL_SECONDS)
    while True:
        async with database.begin(SYSTEM) as unit:
            applied = await read_cursor(unit, METERING, "scheduler")
        if applied >= head:
            return None
        if tries <= 0:
            return f"metered up to {applied} of {head}"
        tries -= 1
        await asyncio.sleep(POLL_SECONDS)
