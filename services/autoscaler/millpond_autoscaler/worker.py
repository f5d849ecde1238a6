"""The worker process of the autoscaler."""

from collections.abc import Sequence

import httpx

from millpond_autoscaler.consumers.registry import registry_consumer
from millpond_autoscaler.consumers.scheduler import scheduler_consumer
from millpond_autoscaler.loops.scaling import ScalingTimes, scaling_loop
from millpond_autoscaler.loops.signals import signals_loop
from millpond_autoscaler.settings import Settings
from millpond_kernel.loops import Loop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import ServiceWorker, WorkerKernel


def create_worker(
    settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None
) -> ServiceWorker:
    """The worker; settings come from the environment unless given."""
    chosen = settings or Settings()

    def parts(kernel: WorkerKernel) -> tuple[Sequence[Consumer], Sequence[Loop]]:
        times = ScalingTimes(
            decide_seconds=chosen.decide_seconds,
            signal_fresh_seconds=chosen.signal_fresh_seconds,
            settle_seconds=chosen.settle_seconds,
            stock_out_seconds=chosen.stock_out_seconds,
        )
        scaling = scaling_loop(kernel, chosen.simulated_folder, times)
        loops = (scaling, signals_loop(kernel, chosen.signals_seconds))
        return (registry_consumer(), scheduler_consumer()), loops

    return ServiceWorker(settings=chosen, parts=parts, transport=transport)
