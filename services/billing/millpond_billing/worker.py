"""The worker process of billing."""

from collections.abc import Sequence

import httpx

from millpond_billing.consumers.quota import tenants_consumer
from millpond_billing.consumers.registry import nodes_consumer
from millpond_billing.consumers.scheduler import allocations_consumer
from millpond_billing.loops.due import DueTimes, due_loop, publish_example
from millpond_billing.loops.forgetting import forgetting_loop
from millpond_billing.loops.reconcile import reconcile_loop
from millpond_billing.settings import Settings
from millpond_kernel.background import make_enqueue
from millpond_kernel.loops import Loop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import ServiceWorker, WorkerKernel


def create_worker(
    settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None
) -> ServiceWorker:
    """The worker; settings come from the environment unless given."""
    chosen = settings or Settings()

    def parts(kernel: WorkerKernel) -> tuple[Sequence[Consumer], Sequence[Loop]]:
        enqueue = make_enqueue("billing", chosen.redis_url.get_secret_value(), chosen.redis_prefix)
        scheduler = kernel.clients["scheduler"]
        times = DueTimes(chosen.due_seconds, chosen.statement_grace_seconds, chosen.overdue_seconds)
        loops = (
            due_loop(kernel.database, scheduler, enqueue, times),
            reconcile_loop(kernel.database, scheduler, chosen.reconcile_seconds),
            forgetting_loop(kernel.database, enqueue),
        )
        return (allocations_consumer(), tenants_consumer(), nodes_consumer()), loops

    async def on_start(kernel: WorkerKernel) -> None:
        await publish_example(kernel.database)

    return ServiceWorker(settings=chosen, parts=parts, on_start=on_start, transport=transport)
