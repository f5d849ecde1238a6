"""The worker process of the registry."""

from collections.abc import Sequence

import httpx

from millpond_kernel.loops import Loop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import ServiceWorker, WorkerKernel
from millpond_registry.consumers.scheduler import scheduler_consumer
from millpond_registry.loops.capacity import count_capacity
from millpond_registry.loops.nodes import watch_nodes
from millpond_registry.loops.pools import replenish_pools
from millpond_registry.settings import Settings
from millpond_registry.usecases.beginnings import prepare


def _parts(kernel: WorkerKernel) -> tuple[Sequence[Consumer], Sequence[Loop]]:
    settings = kernel.settings
    assert isinstance(settings, Settings)
    loops = (
        watch_nodes(kernel, settings.watch_interval_seconds),
        count_capacity(kernel, settings.capacity_interval_seconds, settings.recount_seconds),
        replenish_pools(kernel, settings.replenish_interval_seconds),
    )
    return (scheduler_consumer(),), loops


async def _on_start(kernel: WorkerKernel) -> None:
    await prepare(kernel.database)


def create_worker(
    settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None
) -> ServiceWorker:
    """The worker; settings come from the environment unless given."""
    return ServiceWorker(settings=settings or Settings(), parts=_parts, on_start=_on_start, transport=transport)
