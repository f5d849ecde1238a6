"""The scheduler's worker: consumers, the leader of the cycle, loops, relay."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

import httpx

from millpond_kernel.background import make_enqueue
from millpond_kernel.doorbell import DoorListener
from millpond_kernel.loops import Loop, Unwell
from millpond_kernel.outbox import doorbell_channel
from millpond_kernel.pausing import Stop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import ServiceWorker, WorkerKernel
from millpond_scheduler.background.sending import QUEUE
from millpond_scheduler.consumers.autoscaler import autoscaler_consumer
from millpond_scheduler.consumers.billing import billing_consumer
from millpond_scheduler.consumers.quota import quota_consumer
from millpond_scheduler.consumers.registry import registry_consumer
from millpond_scheduler.domain.freezing import FreezeRules
from millpond_scheduler.loops.handing import handing_loop
from millpond_scheduler.loops.leader import Leader, LeaderPolicy
from millpond_scheduler.loops.upkeep import UpkeepRules, upkeep_loops
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.providers.log_folder import LogFolder
from millpond_scheduler.settings import Settings

# A leader that fails so often in a row makes the worker not ready.
MAX_FAILURES = 3
LOOK_SECONDS = 5.0
# Longer than a statement may take.
MAX_STEP_SECONDS = 45.0


def create_worker(
    settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None
) -> ServiceWorker:
    """The worker, with settings from the environment unless given."""
    chosen = settings or Settings()
    leaders: dict[int, Leader] = {}

    def parts(kernel: WorkerKernel) -> tuple[Sequence[Consumer], Sequence[Loop]]:
        leader = leaders[id(kernel)] = _make_leader(kernel, chosen)
        rules = UpkeepRules(
            lease_check_seconds=chosen.lease_check_seconds,
            recount_seconds=chosen.recount_seconds,
            log_days=chosen.log_days,
            history_days=chosen.history_days,
            freeze=FreezeRules(chosen.freeze_percent, chosen.freeze_nodes, chosen.freeze_seconds),
        )
        bell = NodeBell(kernel.redis, chosen.redis_prefix)
        enqueue = make_enqueue("scheduler", chosen.redis_url.get_secret_value(), chosen.redis_prefix, QUEUE)
        loops = upkeep_loops(kernel.database, bell, LogFolder(chosen.log_folder), rules)
        followed = (registry_consumer, quota_consumer, billing_consumer, autoscaler_consumer)
        consumers = [consumer(leader.wake) for consumer in followed]
        return consumers, [*loops, handing_loop(kernel.database, enqueue), _watch(leader)]

    def tasks(kernel: WorkerKernel) -> Sequence[Callable[[Stop], Awaitable[None]]]:
        return [leaders[id(kernel)].run]

    return ServiceWorker(settings=chosen, parts=parts, tasks=tasks, transport=transport)


def _make_leader(kernel: WorkerKernel, settings: Settings) -> Leader:
    rules = LeaderPolicy(
        batch_tasks=settings.batch_tasks,
        lease_seconds=settings.leader_seconds,
        poll_seconds=settings.poll_seconds,
        verdict_seconds=settings.verdict_seconds,
        policy=settings.policy(),
        kernels=settings.kernels,
    )
    listener = DoorListener(kernel.redis, doorbell_channel(settings.redis_prefix, kernel.service))
    return Leader(kernel.database, NodeBell(kernel.redis, settings.redis_prefix), listener, rules)


def _watch(leader: Leader) -> Loop:
    """Shows a leader that fails or stands still, so that the worker is not ready and says why."""

    async def look(now: datetime) -> None:
        pass

    return Loop("leader", LOOK_SECONDS, run_pass=look, unwell=partial(why_unwell, leader))


def why_unwell(leader: Leader) -> Unwell | None:
    """What a person must know of a leader: its steps fail, or one does not end."""
    effect, remedy = "nothing new is placed; tasks run on", "see the log of the scheduler's worker"
    if leader.failures >= MAX_FAILURES:
        return Unwell(f"the leader does not plan: {(leader.last_error or '').partition(':')[0]}", effect, remedy)
    seconds = time.monotonic() - leader.stepped_monotonic
    if seconds > MAX_STEP_SECONDS:
        remedy += ", look at PostgreSQL, and end the process: another is started by itself"
        return Unwell(f"the leader has not ended its step for {seconds:.0f} s", effect, remedy)
    return None
