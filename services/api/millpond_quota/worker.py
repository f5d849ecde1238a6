"""The worker process of quota."""

from collections.abc import Sequence

import httpx

from millpond_kernel.loops import Loop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import ServiceWorker, WorkerKernel
from millpond_quota.consumers.registry import pools_consumer
from millpond_quota.consumers.scheduler import alerts_consumer
from millpond_quota.settings import Settings


def _parts(kernel: WorkerKernel) -> tuple[Sequence[Consumer], Sequence[Loop]]:
    return (pools_consumer(), alerts_consumer()), ()


def create_worker(
    settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None
) -> ServiceWorker:
    """The worker; settings come from the environment unless given."""
    return ServiceWorker(settings=settings or Settings(), parts=_parts, transport=transport)
