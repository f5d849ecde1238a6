"""`python -m millpond_kernel.rebuild SERVICE CONSUMER`: loads the views of a consumer anew from its publisher."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.serve import load_worker
from millpond_kernel.streams import Consumer, apply_snapshots, collect_snapshots, lock_cursor
from millpond_kernel.worker import connected_kernel

ATTEMPTS = 20
PAUSE_SECONDS = 0.1


class RebuildRefused(Exception):
    """There is nothing to rebuild from, or the publisher moved on too fast."""


async def rebuild(database: Database, feed: ServiceClient, consumer: Consumer) -> int:
    """Loads the consumer's snapshots anew, in one transaction; returns the publisher's sequence that they show.

    Views that the consumer can `clear` are emptied first, so that nothing wrong stays; others change on a higher
    generation only. The consumer may run meanwhile: its cursor is locked, and it goes on from where it was.

    Raises:
        RebuildRefused: see the class.
    """
    if not consumer.snapshots:
        raise RebuildRefused(f"{consumer.name} keeps no view that could be loaded from {consumer.publisher}")
    for _ in range(ATTEMPTS):
        as_of, pages = await collect_snapshots(feed, consumer)
        async with database.begin(SYSTEM) as unit:
            # A snapshot older than what was applied would take the view back.
            if await lock_cursor(unit, consumer) <= as_of:
                await apply_snapshots(unit, consumer, pages)
                return as_of
        await asyncio.sleep(PAUSE_SECONDS)
    raise RebuildRefused(f"{consumer.publisher} changes too fast; try again when it is quieter")


async def _run(service: str, name: str) -> None:
    worker = load_worker(service)
    async with connected_kernel(worker) as kernel:
        consumers, _ = worker.parts(kernel)
        known = {consumer.name: consumer for consumer in consumers}
        if name not in known:
            raise RebuildRefused(f"{service} has no consumer {name!r}; it has {', '.join(sorted(known))}")
        as_of = await rebuild(kernel.database, kernel.clients[known[name].publisher], known[name])
    sys.stdout.write(f"{service}/{name} rebuilt as of {as_of}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Rebuilds one consumer's views."""
    parser = argparse.ArgumentParser(prog="millpond_kernel.rebuild", description=__doc__)
    parser.add_argument("service")
    parser.add_argument("consumer")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(_run(arguments.service, arguments.consumer))
    except (RebuildRefused, ServiceAway) as error:
        sys.exit(f"not rebuilt: {error}")


if __name__ == "__main__":
    main()
