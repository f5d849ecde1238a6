"""The loop that reads the telemetry stream and keeps it as aggregates of 15 seconds.

What Redis lost, or what came while nobody read, is missing; missing is unknown.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic_core import from_json
from redis.exceptions import RedisError

from millpond_autoscaler.domain.signals import NODE, WINDOW_SECONDS, Windows
from millpond_autoscaler.store import signals, views
from millpond_contracts.bodies.scaling import SignalAggregate
from millpond_contracts.ids import NodeId, PoolId
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import log
from millpond_kernel.worker import WorkerKernel

READ_COUNT = 500
# More than so many entries at a time are not caught up with: the newest say what matters.
MOST_READS = 40
FORGET_SECONDS = 600.0


@dataclass(slots=True)
class SignalReader:
    """The reading end of `<prefix>:telemetry`. `flavors` = node -> device identity -> flavor, as asked last."""

    kernel: WorkerKernel
    windows: Windows = field(default_factory=Windows)
    flavors: dict[NodeId, dict[str, str]] = field(default_factory=dict)
    last_id: str | None = None
    epoch: int | None = None
    forget_at: float = 0.0

    async def run_pass(self, now: datetime, lease: Lease) -> None:
        """Reads what came, and keeps the windows that it filled."""
        if self.epoch != lease.epoch:
            self.epoch, self.last_id, self.windows = lease.epoch, None, Windows()
        try:
            entries = await self._read(now)
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("telemetry_away", error=type(error).__name__)
            entries = []
        await self._count(entries)
        await self._keep(self.windows.take_changed(now), now, lease)

    async def _read(self, now: datetime) -> list[dict[bytes, bytes]]:
        key = f"{self.kernel.settings.redis_prefix}:telemetry"
        if self.last_id is None:
            self.last_id = f"{int((now.timestamp() - WINDOW_SECONDS) * 1000)}-0"
        found: list[dict[bytes, bytes]] = []
        for _ in range(MOST_READS):
            # The client is typed for every kind of reply; ours are pairs of id and fields, as bytes.
            rows: Any = await self.kernel.redis.xrange(key, f"({self.last_id}", "+", count=READ_COUNT)
            if rows:
                self.last_id = rows[-1][0].decode()
                found += [fields for _, fields in rows]
            if len(rows) < READ_COUNT:
                return found
        newest: Any = await self.kernel.redis.xrevrange(key, count=1)
        self.last_id = newest[0][0].decode() if newest else self.last_id
        return found

    async def _count(self, entries: list[dict[bytes, bytes]]) -> None:
        if not entries:
            return
        nodes = {NodeId.parse(fields[b"node"].decode()) for fields in entries}
        if time.monotonic() > self.forget_at:
            self.flavors, self.forget_at = {}, time.monotonic() + FORGET_SECONDS
        unknown = [node for node in nodes if node not in self.flavors]
        if unknown:
            await self._learn(unknown)
        for fields in entries:
            self._add(fields)
            await asyncio.sleep(0)  # thousands of samples each; others work in this process too

    async def _learn(self, nodes: list[NodeId]) -> None:
        """Which devices of which flavor the nodes have; forgotten once in a while, since hardware changes."""
        async with self.kernel.database.begin(SYSTEM) as unit:
            self.flavors.update(await views.list_flavors(unit, nodes))

    def _add(self, fields: dict[bytes, bytes]) -> None:
        """Counts the samples of one heartbeat."""
        node = fields[b"node"].decode()
        pool = PoolId.parse(fields[b"pool"].decode())
        received = datetime.fromisoformat(fields[b"at"].decode()).timestamp()
        clock = int(fields[b"monotonic_ms"])
        known = self.flavors.get(NodeId.parse(node), {})
        for target, name, instants, values in _series(fields):
            flavor = NODE if target == NODE else known.get(target)
            if flavor is not None:
                ages = [max(0, clock - at_ms) / 1000 for at_ms in instants]
                self.windows.add(pool, flavor, name, (node, target), received, ages, values)

    async def _keep(self, found: list[SignalAggregate], now: datetime, lease: Lease) -> None:
        if not found:
            return
        async with self.kernel.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await signals.put_windows(unit, found)
            await signals.delete_old(unit, now)


def _series(fields: dict[bytes, bytes]) -> Iterator[tuple[str, str, list[int], list[float | None]]]:
    """(target, name, instants, values) of an entry; a registry of the version before tells sample by sample."""
    yield from from_json(fields.get(b"series", b"[]"))
    for target, name, at_ms, value in from_json(fields.get(b"signals", b"[]")):
        yield target, name, [at_ms], [value]


def signals_loop(kernel: WorkerKernel, interval_seconds: float) -> Loop:
    """The loop `signals`."""
    return Loop(
        "signals",
        interval_seconds,
        run_leased_pass=SignalReader(kernel).run_pass,
        lease_seconds=max(30.0, 3 * interval_seconds),
    )
