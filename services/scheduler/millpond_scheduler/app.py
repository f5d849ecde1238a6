"""The scheduler's HTTP application."""

from collections.abc import Sequence

import httpx
from fastapi import FastAPI

from millpond_contracts.bodies.work import PollAnswer, PollRequest, ReportAnswer, ReportBatch
from millpond_contracts.ids import NodeId
from millpond_kernel.app import Kernel, ServiceApp, build_app
from millpond_kernel.background import make_enqueue
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.gathering import Gatherer
from millpond_kernel.problem import ProblemError
from millpond_scheduler.background.sending import QUEUE
from millpond_scheduler.domain.quarantine import QuarantineRules
from millpond_scheduler.providers.bells import NodeBell, Waiters
from millpond_scheduler.providers.log_folder import LogFolder
from millpond_scheduler.routes import allocations, jobs, logs, moves, packings, plans, queues, tasks, usage, work
from millpond_scheduler.settings import Settings
from millpond_scheduler.usecases.mirror import Mirror
from millpond_scheduler.usecases.quiet_polls import take_quiet_polls
from millpond_scheduler.usecases.reports import take_reports
from millpond_scheduler.usecases.snapshots import SNAPSHOTS
from millpond_scheduler.usecases.work import NodeCall, OrdersAsked, TakenPoll, list_ordered_nodes, read_orders

# How long a poll or a report may wait for those of other nodes, so that one transaction serves many.
GATHER_SECONDS = 0.025


def _quiet_polls(database: Database) -> Gatherer[tuple[NodeCall, PollRequest], TakenPoll | None]:
    async def take(polls: Sequence[tuple[NodeCall, PollRequest]]) -> list[TakenPoll | None]:
        async with database.begin(SYSTEM) as unit:
            return await take_quiet_polls(unit, polls)

    return Gatherer("polls", take, GATHER_SECONDS)


def gather_orders(database: Database) -> Gatherer[OrdersAsked, PollAnswer | None]:
    """Reads the orders of nodes whose polls were woken at nearly the same time in one transaction."""

    async def read(asked: Sequence[OrdersAsked]) -> list[PollAnswer | None]:
        async with database.begin(SYSTEM) as unit:
            return await read_orders(unit, asked)

    return Gatherer("orders", read, GATHER_SECONDS)


def gather_reports(
    database: Database, quarantine: QuarantineRules
) -> Gatherer[tuple[NodeCall, ReportBatch], ReportAnswer | ProblemError]:
    """Applies what nodes report at nearly the same time in one transaction."""

    async def take(told: Sequence[tuple[NodeCall, ReportBatch]]) -> list[ReportAnswer | ProblemError]:
        async with database.begin(SYSTEM) as unit:
            return await take_reports(unit, told, quarantine)

    return Gatherer("reports", take, GATHER_SECONDS, lambda told: len(told[1].reports))


def create_app(settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The application, with settings from the environment unless given."""
    chosen = settings or Settings()

    async def start(app: FastAPI, kernel: Kernel) -> None:
        async def list_ordered() -> list[NodeId]:
            async with kernel.database.begin(SYSTEM) as unit:
                return await list_ordered_nodes(unit)

        app.state.enqueue = make_enqueue("scheduler", chosen.redis_url.get_secret_value(), chosen.redis_prefix, QUEUE)
        app.state.bell = NodeBell(kernel.redis, chosen.redis_prefix)
        app.state.mirror = Mirror(policy=chosen.policy(), max_age_seconds=chosen.plan_seconds)
        app.state.reports = gather_reports(kernel.database, chosen.quarantine())
        app.state.orders = gather_orders(kernel.database)
        app.state.logs = LogFolder(chosen.log_folder)
        app.state.quiet_polls = _quiet_polls(kernel.database)
        app.state.waiters = Waiters(kernel.redis, chosen.redis_prefix, list_ordered)
        app.state.waiters.start()
        kernel.long_polls.append(app.state.waiters.end_waits)

    async def stop(app: FastAPI, kernel: Kernel) -> None:
        await app.state.waiters.stop()

    return build_app(
        ServiceApp(
            settings=chosen,
            routers=[
                module.router
                for module in (work, jobs, moves, tasks, logs, plans, allocations, queues, packings, usage)
            ],
            standstill="nothing new is placed and nothing is stopped when due; tasks run on",
            snapshots=SNAPSHOTS,
            on_start=start,
            on_stop=stop,
            transport=transport,
        )
    )
