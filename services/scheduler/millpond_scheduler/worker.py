"""The scheduler's worker: consumers, the leader of the cycle, loops, relay."""

from collections.abc import Awaitable, Callable, Sequence

import httpx

from millpond_kernel.doorbell import DoorListener
from millpond_kernel.loops import Loop
from millpond_kernel.outbox import doorbell_channel
from millpond_kernel.pausing import Stop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import ServiceWorker, WorkerKernel
from millpond_scheduler.consumers.billing import billing_consumer
from millpond_scheduler.consumers.quota import quota_consumer
from millpond_scheduler.consumers.registry import registry_consumer
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.loops.leader import Leader, LeaderPolicy
from millpond_scheduler.loops.upkeep import UpkeepRules, upkeep_loops
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.providers.log_folder import LogFolder
from millpond_scheduler.settings import Settings


def create_worker(
    settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None
) -> ServiceWorker:
    """The worker, with settings from the environment unless given."""
    chosen = settings or Settings()
    listeners: dict[int, DoorListener] = {}

    def listener_of(kernel: WorkerKernel) -> DoorListener:
        found = listeners.get(id(kernel))
        if found is None:
            channel = doorbell_channel(chosen.redis_prefix, kernel.service)
            found = listeners[id(kernel)] = DoorListener(kernel.redis, channel)
        return found

    def parts(kernel: WorkerKernel) -> tuple[Sequence[Consumer], Sequence[Loop]]:
        wake = listener_of(kernel).poke
        rules = UpkeepRules(
            lease_check_seconds=chosen.lease_check_seconds,
            recount_seconds=chosen.recount_seconds,
            log_days=chosen.log_days,
            history_days=chosen.history_days,
        )
        bell = NodeBell(kernel.redis, chosen.redis_prefix)
        loops = upkeep_loops(kernel.database, bell, LogFolder(chosen.log_folder), rules)
        return [registry_consumer(wake), quota_consumer(wake), billing_consumer(wake)], loops

    def tasks(kernel: WorkerKernel) -> Sequence[Callable[[Stop], Awaitable[None]]]:
        rules = LeaderPolicy(
            batch_tasks=chosen.batch_tasks,
            lease_seconds=chosen.leader_seconds,
            poll_seconds=chosen.poll_seconds,
            verdict_seconds=chosen.verdict_seconds,
            policy=Policy(hold_after_seconds=chosen.hold_after_seconds),
        )
        bell = NodeBell(kernel.redis, chosen.redis_prefix)
        return [Leader(kernel.database, bell, listener_of(kernel), rules).run]

    return ServiceWorker(settings=chosen, parts=parts, tasks=tasks, transport=transport)
