"""The loop that notices nodes which fell silent."""

from datetime import datetime

from millpond_kernel.clients import ServiceAway
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import log
from millpond_kernel.worker import WorkerKernel
from millpond_registry.usecases import reports


class NodeWatch:
    """Suspects silent nodes. Silence counts from when somebody listened: this process watches, the registry answers."""

    def __init__(self, kernel: WorkerKernel) -> None:
        self._database = kernel.database
        self._registry = kernel.clients["registry"]
        self._epoch: int | None = None
        self._listening_since: datetime | None = None

    async def run_pass(self, now: datetime, lease: Lease) -> None:
        """One look at all ready nodes."""
        if self._listening_since is None or self._epoch != lease.epoch:
            self._epoch, self._listening_since = lease.epoch, now
        async with self._database.begin(SYSTEM) as unit:
            silent = await reports.list_suspects(unit, self._listening_since)
        if silent and not await self._is_heard():
            self._listening_since = now
            return
        for node_id in silent:
            async with self._database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await reports.suspect_node(unit, node_id, now)

    async def _is_heard(self) -> bool:
        """Whether the registry answers at all: while it does not, silence says nothing about a node."""
        try:
            await self._registry.get_json("/healthz/registry")
        except ServiceAway as error:
            log.warning("nobody_listens", error=str(error))
            return False
        return True


def watch_nodes(kernel: WorkerKernel, interval_seconds: float) -> Loop:
    """The loop `watch_nodes`."""
    return Loop(
        "watch_nodes",
        interval_seconds,
        run_leased_pass=NodeWatch(kernel).run_pass,
        lease_seconds=max(10.0, 3 * interval_seconds),
    )
